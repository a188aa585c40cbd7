#pragma once

#include "accelerate/environment/env_vars.h"

namespace accelerate {

/// What the configuration needs to know about this machine.
struct MachineFacts {
  int cores = 1;         ///< cores that this process may run on (its affinity mask)
  int cuda_devices = 0;  ///< CUDA devices that a program started here would see
};

/// Looks at the affinity mask and at the device nodes of NVIDIA's driver, limited by CUDA_VISIBLE_DEVICES;
/// loads no driver, so it costs microseconds.
MachineFacts detect_machine(const EnvVars& variables);

}  // namespace accelerate
