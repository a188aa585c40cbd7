#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "accelerate/comm/communicator.h"

namespace accelerate {

/// Names and defaults are those of torch.amp.GradScaler and HF's GradScalerKwargs, up to growth_interval.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  /// Steps without an overflow after which the scale grows.
  int64_t growth_interval = 2000;
  /// The scale never falls below this.
  double min_scale = 1.0 / 65536;
  /// After so many steps left out one after the other, the next one is an error. 0: never.
  int64_t max_skipped_steps = 32;
};

/// What a checkpoint keeps of a GradScaler; the names are those of its state_dict in Python.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;
};

/// Keeps small gradients of float16 training from vanishing: the loss is multiplied by a scale before
/// backward and the gradients are divided by it before the optimizer steps. A step whose gradients overflowed
/// on any rank is left out on all, and the scale falls; after growth_interval good ones it grows. The numbers
/// are those of torch.amp.GradScaler. One thread.
class GradScaler {
 public:
  /// Tells the name of a parameter for errors.
  using NameOf = std::function<std::string(const at::Tensor& parameter)>;

  /// `communicator`: whose ranks agree on overflows in each step; null where their gradients are equal
  /// anyway, as data parallel training's are once they have been reduced.
  /// @throws ConfigError for factors and intervals that can't be.
  explicit GradScaler(const GradScalerOptions& options, std::shared_ptr<Communicator> communicator = nullptr,
                      NameOf name_of = {});

  /// `loss` times the scale.
  at::Tensor scale(const at::Tensor& loss);
  /// Collective with a communicator. Divides the gradients of the optimizer's parameters by the scale, once a
  /// step; further calls do nothing. All ranks learn whether any gradient of any rank is not finite.
  /// @throws ConfigError for parameters in float16, whose gradients can't be unscaled without loss.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Collective with a communicator. unscale_(), then `step` unless a gradient was not finite. Returns
  /// whether it ran. The scale follows before it is next used.
  /// @throws Error after max_skipped_steps left out one after the other, naming the first bad parameter.
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& step);
  /// Forgets that the optimizer's gradients were unscaled: they have been cleared.
  void reset(torch::optim::Optimizer& optimizer);
  /// True between unscale_() and step() or reset().
  bool is_unscaled(const torch::optim::Optimizer& optimizer) const;

  double get_scale();
  GradScalerState state();
  void load_state(const GradScalerState& state);

 private:
  void prepare(at::Device device);
  void update();
  void count_skipped(torch::optim::Optimizer& optimizer);

  GradScalerOptions options_;
  std::shared_ptr<Communicator> communicator_;
  NameOf name_of_;
  GradScalerState initial_;
  at::Tensor scale_;           // [1], float32, on the gradients' device; undefined before the first use
  at::Tensor growth_tracker_;  // [1], int32
  // What unscale_() found, by optimizer, until its step.
  std::unordered_map<const torch::optim::Optimizer*, at::Tensor> found_inf_;
  at::Tensor found_since_update_;  // of all steps since the last update; undefined if there was none
  int64_t steps_ = 0;
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace accelerate
