#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "accelerate/optim/accumulation.h"
#include "accelerate/precision/grad_scaler.h"

namespace accelerate {

namespace detail {

/// How a prepared optimizer steps.
struct OptimizerRules {
  /// By fused kernels where they apply, see Note [Fused steps].
  bool fused = true;
  /// Null but for float16.
  std::shared_ptr<GradScaler> scaler = nullptr;
};

/// What a prepared optimizer is, whatever its type.
class OptimizerCore {
 public:
  /// Keeps the optimizer alive where it was given by value; a variable of the user's is only referred to.
  OptimizerCore(std::shared_ptr<torch::optim::Optimizer> optimizer,
                std::shared_ptr<const Accumulation> accumulation, OptimizerRules rules = {})
      : optimizer_(std::move(optimizer)), accumulation_(std::move(accumulation)), rules_(std::move(rules)) {}

  void step();
  void zero_grad(bool set_to_none);
  void step(const std::function<at::Tensor()>& closure);
  /// True if one of this optimizer's parameters is below `loss` in the graph.
  bool reached_by(const at::Tensor& loss) const;
  /// Called by the Accelerator after each backward that reached this optimizer.
  /// @throws ConfigError when the gradients that it added to had been unscaled.
  void note_backward();
  /// Collective under float16: divides the gradients by the scale, if a backward has left some.
  void unscale();
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const Accumulation& accumulation() const { return *accumulation_; }
  /// The last step was left out, since gradients were not finite.
  bool step_was_skipped() const { return step_was_skipped_; }
  /// Steps that it has taken, those of earlier runs included once their state is loaded.
  int64_t steps_taken() const { return steps_taken_; }
  void set_steps_taken(int64_t steps) { steps_taken_ = steps; }

 private:
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<const Accumulation> accumulation_;
  OptimizerRules rules_;
  bool step_was_skipped_ = false;
  int64_t steps_taken_ = 0;
  int64_t backward_window_ = -1;       // window of the last backward whose gradients have not been used
  int64_t backward_micro_batch_ = -1;  // its micro-batch
};

}  // namespace detail

/// A user's optimizer within an Accelerator: `step()` acts once a window of accumulated micro-batches is
/// complete and does nothing before; `zero_grad()` never throws gradients of an open window away, so that it
/// may stand at the start or at the end of the loop body. `optimizer->` and `optimizer.` give the same
/// methods.
template <class O>
class PreparedOptimizer {
 public:
  PreparedOptimizer(std::shared_ptr<O> optimizer, std::shared_ptr<detail::OptimizerCore> core)
      : optimizer_(std::move(optimizer)), core_(std::move(core)) {}

  PreparedOptimizer* operator->() { return this; }
  PreparedOptimizer& operator*() { return *this; }

  /// One optimizer step if this micro-batch ends its window.
  void step() { core_->step(); }
  /// As above for optimizers that evaluate the loss themselves (LBFGS): `closure` clears the gradients, runs
  /// Accelerator::backward() and returns the loss.
  void step(const std::function<at::Tensor()>& closure) { core_->step(closure); }
  /// Clears the gradients. `set_to_none` (the default, as in LibTorch) frees them instead of writing zeros.
  void zero_grad(bool set_to_none = true) { core_->zero_grad(set_to_none); }
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() { return optimizer_->param_groups(); }
  torch::optim::OptimizerOptions& defaults() { return optimizer_->defaults(); }
  auto& state() { return optimizer_->state(); }
  /// True if the last step was left out because of gradients that are not finite.
  bool step_was_skipped() const { return core_->step_was_skipped(); }
  /// The user's own optimizer.
  O& unwrap() { return *optimizer_; }
  const std::shared_ptr<detail::OptimizerCore>& core() const { return core_; }

 private:
  std::shared_ptr<O> optimizer_;
  std::shared_ptr<detail::OptimizerCore> core_;
};

}  // namespace accelerate
