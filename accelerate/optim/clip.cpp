#include "accelerate/optim/clip.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <vector>

namespace accelerate {
namespace {

std::vector<at::Tensor> gradients(std::span<const at::Tensor> parameters) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) out.push_back(parameter.grad());
  }
  return out;
}

}  // namespace

at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm, double norm_type) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> grads = gradients(parameters);
  if (grads.empty()) return at::zeros({});
  std::vector<at::Tensor> norms = at::_foreach_norm(grads, norm_type);
  for (at::Tensor& norm : norms) norm = norm.to(norms[0].device());
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), norm_type);
  const at::Tensor factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (const at::Tensor& grad : grads) grad.mul_(factor.to(grad.device()));
  return total;
}

void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value) {
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& grad : gradients(parameters)) grad.clamp_(-clip_value, clip_value);
}

}  // namespace accelerate
