#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "accelerate/comm/communicator.h"

namespace accelerate::detail {

/// Collective. Checks that all ranks' modules have the same parameters: names, order, shapes, dtypes, and
/// which of them are trained.
/// @throws ConfigError on every rank, naming a rank that differs from rank 0 and (there) the first parameter
/// that does.
void check_same_model(Communicator& communicator, const torch::nn::Module& module);

/// Names of the parameters in `candidates` (name, parameter) from which `loss` can't be reached.
std::vector<std::string> unreached_parameters(
    const at::Tensor& loss, const std::vector<std::pair<std::string, at::Tensor>>& candidates);

}  // namespace accelerate::detail
