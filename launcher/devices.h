#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/config/config.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate::cli {

/// The CUDA_VISIBLE_DEVICES that the ranks get: the devices of gpu_ids that are visible here. Nothing when
/// the configuration names none (the ranks then inherit ours) or the job stays on the CPU.
/// @throws ConfigError naming both lists when a device asked for is not visible, or there are fewer than
/// ranks.
std::optional<std::string> devices_of_ranks(const Config& config, const EnvVars& variables);

/// The CPUs that each rank of this machine is pinned to where enable_cpu_affinity asks for it; else empty.
/// @throws ConfigError when there are fewer CPUs than ranks.
std::vector<std::vector<int>> cpus_of_ranks(const Config& config, const EnvVars& variables);

}  // namespace accelerate::cli
