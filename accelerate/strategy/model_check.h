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

}  // namespace accelerate::detail
