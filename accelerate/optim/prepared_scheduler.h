#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <memory>
#include <utility>
#include <vector>

#include "accelerate/optim/prepared_optimizer.h"

namespace accelerate {

/// When a prepared scheduler advances.
struct SchedulerRule {
  /// Only when the optimizers have stepped; otherwise at every call.
  bool with_optimizer = true;
  /// How often per optimizer step: 1, or the number of ranks under HF's rule.
  int64_t steps = 1;
};

namespace detail {

/// Which of the prepared optimizers a scheduler drives. LibTorch keeps that private, but hands the current
/// rates out to derived classes: a rate that is set for a moment shows up there if it is the same optimizer.
/// @throws ConfigError when it is none of them, or one that was moved from.
std::vector<std::shared_ptr<OptimizerCore>> optimizers_of(
    const torch::optim::LRScheduler& scheduler,
    const std::vector<std::shared_ptr<OptimizerCore>>& optimizers);

}  // namespace detail

/// A learning-rate scheduler within an Accelerator. `step()` advances it once per real optimizer step: it
/// holds still on micro-batches that only accumulate and when the optimizer left its step out.
template <class S>
class PreparedScheduler {
 public:
  PreparedScheduler(std::shared_ptr<S> scheduler, std::shared_ptr<const Accumulation> accumulation,
                    std::vector<std::shared_ptr<detail::OptimizerCore>> optimizers, SchedulerRule rule)
      : scheduler_(std::move(scheduler)),
        accumulation_(std::move(accumulation)),
        optimizers_(std::move(optimizers)),
        rule_(rule) {}

  PreparedScheduler* operator->() { return this; }
  PreparedScheduler& operator*() { return *this; }

  /// Arguments as the scheduler's own step() takes them (a metric for ReduceLROnPlateau, else none).
  template <class... Args>
  void step(Args&&... args) {
    if (!rule_.with_optimizer) {
      scheduler_->step(args...);
      return;
    }
    if (!accumulation_->sync_gradients()) return;
    for (const auto& optimizer : optimizers_) {
      if (optimizer->step_was_skipped()) return;
    }
    for (int64_t i = 0; i < rule_.steps; ++i) scheduler_->step(args...);
  }
  /// Where the schedule stands, for those that can say it (get_scheduler()'s and LambdaLR).
  auto state() const requires requires(const S& scheduler) { scheduler.state(); }
  { return scheduler_->state(); }
  /// Goes on from a state, as the scheduler's own load_state().
  template <class State>
  requires requires(S& scheduler, const State& state) { scheduler.load_state(state); }
  void load_state(const State& state) { scheduler_->load_state(state); }
  /// The user's own scheduler.
  S& unwrap() { return *scheduler_; }

 private:
  std::shared_ptr<S> scheduler_;
  std::shared_ptr<const Accumulation> accumulation_;
  std::vector<std::shared_ptr<detail::OptimizerCore>> optimizers_;
  SchedulerRule rule_;
};

}  // namespace accelerate
