#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/environment/env_vars.h"

namespace accelerate {

/// What the configuration needs to know about this machine.
struct MachineFacts {
  int cores = 1;         ///< cores that this process may run on (its affinity mask)
  int cuda_devices = 0;  ///< CUDA devices that a program started here would see
  /// Their names in CUDA_VISIBLE_DEVICES, which are the machine's ("4", "GPU-1a2b"); empty where the variable
  /// is not set, and the devices are numbered from 0.
  std::vector<std::string> visible_ids = {};
};

/// Looks at the affinity mask and at the device nodes of NVIDIA's driver, limited by CUDA_VISIBLE_DEVICES;
/// loads no driver, so it costs microseconds.
MachineFacts detect_machine(const EnvVars& variables);

/// The entries of a CUDA_VISIBLE_DEVICES that CUDA takes on a machine with `devices` devices.
std::vector<std::string> visible_ids(std::string_view list, int devices);

/// Those of `ids` (of the machine, as in gpu_ids) that a program started here could not be given. A unique
/// name may be shortened, as CUDA allows; without CUDA_VISIBLE_DEVICES it passes, since only the driver knows
/// it.
std::vector<std::string> missing_devices(const MachineFacts& machine, std::span<const std::string> ids);

}  // namespace accelerate
