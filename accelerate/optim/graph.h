#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// Names of the parameters in `candidates` (name, parameter) from which `loss` can't be reached.
std::vector<std::string> unreached_parameters(
    const at::Tensor& loss, const std::vector<std::pair<std::string, at::Tensor>>& candidates);

}  // namespace accelerate::detail
