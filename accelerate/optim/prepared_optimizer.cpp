#include "accelerate/optim/prepared_optimizer.h"

#include <c10/core/GradMode.h>

#include "accelerate/core/error.h"
#include "accelerate/optim/fused_step.h"
#include "accelerate/optim/graph.h"

namespace accelerate::detail {

void OptimizerCore::step() {
  if (!accumulation_->sync_gradients()) return;
  const auto own_step = [&] {
    if (rules_.fused) {
      fused_step(*optimizer_);
    } else {
      optimizer_->step();
    }
  };
  if (rules_.scaler) {
    step_was_skipped_ = !rules_.scaler->step(*optimizer_, own_step);
  } else {
    own_step();
  }
  steps_taken_ += step_was_skipped_ ? 0 : 1;
  backward_window_ = -1;
}

void OptimizerCore::step(const std::function<at::Tensor()>& closure) {
  if (!accumulation_->sync_gradients()) return;
  if (rules_.scaler) {
    throw ConfigError(
        {.what = "a step with a closure under mixed_precision fp16",
         .hint = "The closure would run backward more than once a step; train in bf16 or float32."});
  }
  optimizer_->step(closure);
  ++steps_taken_;
  backward_window_ = -1;
}

bool OptimizerCore::reached_by(const at::Tensor& loss) const {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) parameters.emplace_back("", parameter);
  }
  return unreached_parameters(loss, parameters).size() < parameters.size();
}

void OptimizerCore::unscale() {
  if (rules_.scaler && backward_window_ == accumulation_->window()) rules_.scaler->unscale_(*optimizer_);
}

void OptimizerCore::note_backward() {
  if (rules_.scaler && rules_.scaler->is_unscaled(*optimizer_)) {
    throw ConfigError({.what = "backward() added to gradients that were unscaled already (by clipping)",
                       .hint = "Run every backward of a step first, then clip, then step()."});
  }
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
  if (rules_.scaler) rules_.scaler->reset(*optimizer_);
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
