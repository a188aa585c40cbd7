#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/strategy/comm_hooks.h"

namespace accelerate {

/// Options of PowerSGD; names, meaning and defaults are those of PyTorch's PowerSGDState, which HF passes on
/// as comm_state_option.
struct PowerSgdOptions {
  /// Gradient matrices are sent as products of two matrices with this many columns. Larger: better
  /// approximations, more to send and to compute.
  int64_t matrix_approximation_rank = 1;
  /// Steps at the start that average the gradients as they are. At least 2 with use_error_feedback or
  /// warm_start, since buckets are made anew after the first step.
  int64_t start_powerSGD_iter = 1000;
  /// A matrix is compressed only where that makes it smaller than 1/min_compression_rate of itself, else sent
  /// as it is. Not asked by batched_power_sgd.
  double min_compression_rate = 2;
  /// What compression lost is added to the next step's gradients. Costs memory as large as the gradients.
  bool use_error_feedback = true;
  /// Each step starts from the last one's matrices instead of random ones.
  bool warm_start = true;
  /// Added to column norms before dividing by them. With 0 a gradient of zeros becomes not-a-number.
  double orthogonalization_epsilon = 0;
  /// Of the random matrices, 0 to 2^32 - 1; equal on all ranks.
  int64_t random_seed = 0;
  /// Matrices of one shape are computed in one batch: faster for many small ones, with a copy of them.
  bool batch_tensors_with_same_shape = false;
};

/// PowerSGD (Vogels, Karimireddy and Jaggi 2019, https://arxiv.org/abs/1905.13727), step by step as in
/// PyTorch: its numbers too, for the same seed. `batched`: each bucket is taken as one square matrix, padded
/// with zeros; faster and coarser.
/// @throws ConfigError naming the option that can't be.
std::unique_ptr<CommHook> make_power_sgd(const PowerSgdOptions& options, bool batched = false);

/// Says what is wrong with `options`, as make_power_sgd() does.
void check_power_sgd(const PowerSgdOptions& options);

}  // namespace accelerate
