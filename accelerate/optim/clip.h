#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace accelerate {

/// Scales the gradients of `parameters` in place so that the norm of all of them taken together is at most
/// `max_norm`, and returns the norm before as a 0-d tensor. `norm_type` is p of the p-norm; infinity is the
/// largest absolute value. The factor is min(1, max_norm / (norm + 1e-6)), as in
/// torch.nn.utils.clip_grad_norm_, whose results it equals. Never waits for a device. Local.
at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm, double norm_type = 2.0);

/// Limits every gradient element to [-clip_value, clip_value] in place. Local.
void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value);

}  // namespace accelerate
