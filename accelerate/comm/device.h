#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "accelerate/environment/topology.h"

namespace accelerate {

/// What the user asked for.
struct DeviceRequest {
  bool cpu = false;  ///< use the CPU although there are other devices
  std::optional<std::string>
      name;                    ///< a device by torch's name ("cuda:1", "cpu"), from ACCELERATE_TORCH_DEVICE
  bool cuda_required = false;  ///< the configuration asks for GPUs: having none is an error
};

/// The device of this rank: the one named; else CUDA device number local_rank where this build and machine
/// have one for every local rank; else the CPU. Makes it the current device, so that a rank never touches
/// another.
/// @throws ConfigError when the name is not valid or there are fewer devices than local ranks.
at::Device choose_device(const DeviceRequest& request, const Topology& topology);

}  // namespace accelerate
