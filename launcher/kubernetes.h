#pragma once

#include <map>
#include <optional>
#include <string>

#include "accelerate/config/config.h"
#include "accelerate/environment/env_vars.h"
#include "launcher/launch_flags.h"

namespace accelerate::cli {

/// What a Kubernetes PyTorchJob tells the launcher in a pod: PET_NNODES, PET_NPROC_PER_NODE and so on, which
/// its operator sets for torchrun, or in older ones MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, which then
/// count pods.
struct PodJob {
  /// Keys of the configuration, and the variable that each came from.
  struct Value {
    std::string text;
    std::string variable;
  };
  std::map<std::string, Value> keys;
  std::optional<int> min_machines;  ///< of an elastic job
  std::optional<std::string> job_name;
  std::optional<int> max_restarts;

  /// `variables` with the keys in the names that load_config() reads, where these are not set already.
  EnvVars with_keys(EnvVars variables) const;
  /// Notes "Kubernetes (PET_NNODES)" as the origin of what came from here.
  void set_origins(Config& config) const;
};

/// Nothing outside such a pod, inside a rank of another launcher, and where a flag says how many machines
/// there are. @throws ConfigError naming the variable that makes no sense.
std::optional<PodJob> find_pod_job(const LaunchFlagSet& given, const EnvVars& variables);

}  // namespace accelerate::cli
