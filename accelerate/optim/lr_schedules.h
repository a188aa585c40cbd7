#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate {

/// Where a learning-rate schedule stands, for checkpoints.
struct LrScheduleState {
  int64_t step = 0;                ///< calls of step() so far
  std::vector<double> base_rates;  ///< what the factor multiplies, one a parameter group
};

/// torch.optim.lr_scheduler.LambdaLR: the rate of every parameter group is the one that it had when the
/// schedule was made, times factor(step). As in Python, and unlike LibTorch's StepLR, factor(0) is in force
/// at once and factor(k) after k calls of step(). The optimizer must outlive the schedule.
class LambdaLR final : public torch::optim::LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int64_t step)> factor);

  /// The rates that are in force, one a parameter group.
  std::vector<double> get_last_lr() const { return get_current_lrs(); }
  LrScheduleState state() const { return {static_cast<int64_t>(step_count_) - 1, base_rates_}; }
  /// Python's name for state().
  LrScheduleState state_dict() const { return state(); }
  /// Goes on from a state; sets the optimizer's rates too.
  /// @throws ConfigError when it was written with another number of parameter groups.
  void load_state(const LrScheduleState& state);
  /// Python's name for load_state().
  void load_state_dict(const LrScheduleState& state) { load_state(state); }

 private:
  std::vector<double> get_lrs() override;

  std::function<double(int64_t)> factor_;
  std::vector<double> base_rates_;
};

/// How a warm-up or decay runs from one level to the other.
enum class RampShape { kLinear, kCosine, kOneMinusSqrt };

/// Options of get_scheduler(), with the names and defaults of transformers'. One that the schedule does not
/// use is an error when set.
struct SchedulerOptions {
  /// Steps in which the rate rises from 0 to the optimizer's. transformers wants it said even where it is 0.
  int64_t num_warmup_steps = 0;
  /// Optimizer steps of the whole training; where the decay ends.
  std::optional<int64_t> num_training_steps = std::nullopt;
  /// Waves of the cosine. Default: 0.5, down to the end; cosine_with_restarts: 1, its number of restarts.
  std::optional<double> num_cycles = std::nullopt;
  /// polynomial: the rate at the end, default 1e-7, and the exponent, default 1.
  std::optional<double> lr_end = std::nullopt;
  std::optional<double> power = std::nullopt;
  /// inverse_sqrt: steps after which the rate is divided by sqrt(2). Default: num_warmup_steps, or 10000.
  std::optional<int64_t> timescale = std::nullopt;
  /// cosine_with_min_lr, cosine_warmup_with_min_lr: the lowest rate, as such or as a part of the optimizer's.
  /// One of the two is needed.
  std::optional<double> min_lr = std::nullopt;
  std::optional<double> min_lr_rate = std::nullopt;
  /// cosine_warmup_with_min_lr: part of the optimizer's rate at which the warm-up begins. Default:
  /// 1 / num_warmup_steps.
  std::optional<double> warmup_lr_rate = std::nullopt;
  /// warmup_stable_decay: steps of the decay (needed), and of the stable part before it (default: what is
  /// left of num_training_steps, which has no say where this is set).
  std::optional<int64_t> num_decay_steps = std::nullopt;
  std::optional<int64_t> num_stable_steps = std::nullopt;
  /// warmup_stable_decay: the shapes, linear and cosine by default, and the lowest rate as a part of the
  /// optimizer's, default 0.
  std::optional<RampShape> warmup_type = std::nullopt;
  std::optional<RampShape> decay_type = std::nullopt;
  std::optional<double> min_lr_ratio = std::nullopt;
};

/// A learning-rate schedule of transformers' get_scheduler() by its name, with equal rates step by step
/// (transformers 5.24, optimization.py): linear, cosine, cosine_with_restarts, polynomial, constant,
/// constant_with_warmup, inverse_sqrt, cosine_with_min_lr, cosine_warmup_with_min_lr, warmup_stable_decay.
/// Steps are optimizer steps. Give the result and the optimizer to Accelerator::prepare(). Sets the
/// optimizer's rates to those of step 0; the optimizer must outlive the result.
/// @throws ConfigError for a name that is not known (it says the nearest), an option that is missing, out of
/// range, or not one of this schedule's. "reduce_lr_on_plateau" steps with a metric and is therefore a type
/// of its own, torch::optim::ReduceLROnPlateauScheduler, which prepare() takes too.
LambdaLR get_scheduler(std::string_view name, torch::optim::Optimizer& optimizer,
                       const SchedulerOptions& options = {});

/// The names that get_scheduler() knows.
std::vector<std::string> scheduler_names();

}  // namespace accelerate
