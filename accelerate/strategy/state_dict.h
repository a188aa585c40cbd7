#pragma once

#include <torch/nn/module.h>

#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// Parameters and buffers of a module under their dotted names, as Python's state_dict() names them. The
/// tensors are the module's own (detached), not copies.
TensorDict state_dict(const torch::nn::Module& module);

}  // namespace accelerate
