#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>

namespace accelerate {

/// Scales the gradients of `parameters` in place so that the norm of all of them taken together is at most
/// `max_norm`, and returns the norm before as a 0-d tensor on the device of the first gradient; 0 if there
/// are none. `norm_type` is p > 0 of the p-norm; infinity is the largest absolute value. The factor is min(1,
/// max_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_, whose results it equals; sparse
/// gradients, which that refuses, count as the tensors that they stand for. Parameters may be on several
/// devices. Never waits for a device. Local.
/// @throws ConfigError for a `max_norm` below 0 or a `norm_type` that is not above 0.
at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm, double norm_type = 2.0);

/// Limits every gradient element to [-clip_value, clip_value] in place, as torch.nn.utils.clip_grad_value_.
/// Local.
/// @throws ConfigError for a `clip_value` below 0.
void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value);

/// The parameter at which the norm of the gradients taken together, from the first on, becomes infinite or
/// NaN: its index, or nullopt if it stays finite. Waits for the device. Local.
std::optional<int64_t> first_nonfinite_gradient(std::span<const at::Tensor> parameters,
                                                double norm_type = 2.0);

}  // namespace accelerate
