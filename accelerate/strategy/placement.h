#pragma once

#include <torch/nn/module.h>

namespace accelerate {

/// Moves parameters, their gradients and buffers to `device`. All of them stay the same tensors, so that an
/// optimizer built before still holds the module's parameters. Unlike Module::to(), also for devices whose
/// tensors are of another kind than the CPU's (a plug-in device, XLA).
void move_to_device(torch::nn::Module& module, at::Device device);

}  // namespace accelerate
