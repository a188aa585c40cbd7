#include "accelerate/optim/accumulation.h"

#include <algorithm>

namespace accelerate {

void Accumulation::begin_micro_batch() {
  const LoaderProgress* loader = options_.sync_with_dataloader ? active_->current() : nullptr;
  ++micro_batch_;
  in_micro_batch_ = true;
  if (position_ == 0) {
    ++window_;
    window_size_ = options_.num_steps;
    if (loader != nullptr && loader->batches_left > 0)
      window_size_ = std::min(window_size_, loader->batches_left);
  }
  ++position_;
  sync_gradients_ = position_ >= window_size_ || (loader != nullptr && loader->end_of_dataloader());
  if (sync_gradients_) position_ = 0;
}

}  // namespace accelerate
