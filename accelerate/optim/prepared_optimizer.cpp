#include "accelerate/optim/prepared_optimizer.h"

#include <c10/core/GradMode.h>

#include "accelerate/optim/fused_step.h"
#include "accelerate/optim/graph.h"

namespace accelerate::detail {

void OptimizerCore::step() {
  if (!accumulation_->sync_gradients()) return;
  if (fused_) {
    fused_step(*optimizer_);
  } else {
    optimizer_->step();
  }
  backward_window_ = -1;
}

void OptimizerCore::step(const std::function<at::Tensor()>& closure) {
  if (!accumulation_->sync_gradients()) return;
  optimizer_->step(closure);
  backward_window_ = -1;
}

bool OptimizerCore::reached_by(const at::Tensor& loss) const {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) parameters.emplace_back("", parameter);
  }
  return unreached_parameters(loss, parameters).size() < parameters.size();
}

void OptimizerCore::note_backward() {
  backward_window_ = accumulation_->window();
  backward_micro_batch_ = accumulation_->micro_batch();
}

// Gradients of an open window that earlier micro-batches left must stay. What may go: gradients of a finished
// window, and all of them when the user clears after the backward that ends a window (to leave a bad step
// out).
void OptimizerCore::zero_grad(bool set_to_none) {
  const bool window_is_open = backward_window_ == accumulation_->window();
  const bool after_last_backward =
      accumulation_->sync_gradients() && backward_micro_batch_ == accumulation_->micro_batch();
  if (window_is_open && !after_last_backward) return;
  backward_window_ = -1;
  const c10::AutoGradMode no_grad(false);
  // Optimizer::zero_grad() calls detach_() on gradients and so refuses those that are views of DDP's buckets.
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        if (gradient.requires_grad()) gradient = gradient.detach();  // of a backward with create_graph
        gradient.zero_();
      }
    }
  }
}

}  // namespace accelerate::detail
