#pragma once

#include <string>

#include "accelerate/config/load.h"
#include "launcher/config_prompt.h"

namespace accelerate::cli {

/// Asks how jobs should run on `machine`. Offers what this release supports and takes only answers that a
/// launch on this machine would take.
/// @throws ConfigError when the input ends early.
Config ask_config(Prompt& prompt, const MachineFacts& machine);

/// The configuration of `accel config --default`: all CUDA devices of `machine`, or one process on the CPU.
/// @throws ConfigError when `mixed_precision` (empty: no) is no precision or not supported.
Config basic_config(const MachineFacts& machine, const std::string& mixed_precision);

}  // namespace accelerate::cli
