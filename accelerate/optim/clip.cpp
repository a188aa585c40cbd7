#include "accelerate/optim/clip.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Tensors = std::vector<at::Tensor>;

// Gradients of one device and dtype, for which a GPU has kernels that work on a whole list.
struct GradientGroup {
  at::Device device;
  at::ScalarType dtype;
  Tensors values;
};

// The gradients that are there, by device and dtype, in the order of their first. Of a sparse one only the
// elements that it has, each once: of all others the norm is 0, and they stay 0.
std::vector<GradientGroup> gradient_groups(std::span<const at::Tensor> parameters) {
  std::vector<GradientGroup> groups;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() && !gradient.is_coalesced()) gradient = gradient.coalesce();
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    const auto fits = [&](const GradientGroup& group) {
      return group.device == values.device() && group.dtype == values.scalar_type();
    };
    auto found = std::find_if(groups.begin(), groups.end(), fits);
    if (found == groups.end()) {
      groups.push_back({values.device(), values.scalar_type(), {}});
      found = groups.end() - 1;
    }
    found->values.push_back(values);
  }
  return groups;
}

at::Tensor total_norm(const std::vector<GradientGroup>& groups, double norm_type) {
  Tensors norms;
  for (const GradientGroup& group : groups) {
    for (const at::Tensor& norm : at::_foreach_norm(group.values, norm_type)) {
      norms.push_back(norm.to(groups[0].device));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void check(double max_norm, double norm_type) {
  if (!(max_norm >= 0)) {
    throw ConfigError(
        {.what = "clip_grad_norm_: max_norm", .expected = "0 or more", .got = concat(max_norm)});
  }
  if (!(norm_type > 0)) {
    throw ConfigError({.what = "clip_grad_norm_: norm_type",
                       .expected = "p > 0 of a p-norm, or infinity",
                       .got = concat(norm_type)});
  }
}

}  // namespace

at::Tensor clip_grad_norm_(std::span<const at::Tensor> parameters, double max_norm, double norm_type) {
  check(max_norm, norm_type);
  const c10::AutoGradMode no_grad(false);
  const std::vector<GradientGroup> groups = gradient_groups(parameters);
  if (groups.empty()) return at::zeros({});
  const at::Tensor total = total_norm(groups, norm_type);
  const at::Tensor factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (const GradientGroup& group : groups) at::_foreach_mul_(group.values, factor.to(group.device));
  return total;
}

void clip_grad_value_(std::span<const at::Tensor> parameters, double clip_value) {
  if (!(clip_value >= 0)) {
    throw ConfigError(
        {.what = "clip_grad_value_: clip_value", .expected = "0 or more", .got = concat(clip_value)});
  }
  const c10::AutoGradMode no_grad(false);
  for (const GradientGroup& group : gradient_groups(parameters)) {
    at::_foreach_clamp_min_(group.values, -clip_value);
    at::_foreach_clamp_max_(group.values, clip_value);
  }
}

std::optional<int64_t> first_nonfinite_gradient(std::span<const at::Tensor> parameters, double norm_type) {
  const c10::AutoGradMode no_grad(false);
  const auto is_finite = [&](size_t count) {
    const std::vector<GradientGroup> groups = gradient_groups(parameters.first(count));
    return groups.empty() || std::isfinite(total_norm(groups, norm_type).item<double>());
  };
  if (is_finite(parameters.size())) return std::nullopt;
  size_t count = 1;
  while (count < parameters.size() && is_finite(count)) ++count;
  return static_cast<int64_t>(count) - 1;
}

}  // namespace accelerate
