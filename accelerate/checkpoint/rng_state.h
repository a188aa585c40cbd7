#pragma once

#include <string>
#include <vector>

#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// Local. The states of torch's default random generators that a rank on `device` draws from: "cpu" and, if
/// that is another, the device's, by its type ("cuda"). Tensors of bytes, copies.
TensorDict rng_states(at::Device device);

/// Local. The reverse. Returns the types of the generators for which `states` has none.
/// @throws CheckpointError for a state that does not fit its generator.
std::vector<std::string> set_rng_states(at::Device device, const TensorDict& states);

}  // namespace accelerate
