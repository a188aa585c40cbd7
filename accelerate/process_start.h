#pragma once

#include "accelerate/accelerator.h"

namespace accelerate::detail {

/// What an Accelerator begins with.
struct ProcessStart {
  Config config;
  ProcessContext context;
};

/// Collective. Reads the environment and the configuration, chooses the device, meets the other ranks.
ProcessStart start_process(const AcceleratorOptions& options);

}  // namespace accelerate::detail
