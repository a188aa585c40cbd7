#pragma once

#include <optional>
#include <string>

#include "accelerate/config/config.h"
#include "accelerate/environment/env_vars.h"
#include "accelerate/launch/launch_plan.h"
#include "launcher/kubernetes.h"
#include "launcher/launch_flags.h"

namespace accelerate::cli {

/// Where nobody gave machine_rank, takes it from the batch system's variables, and notes which.
void find_machine_rank(Config& config, const EnvVars& variables);

/// "accel: machine_rank 1 (SLURM_NODEID)" on standard error, where a batch system decided.
void say_machine_rank(const Config& config);

/// The plan's machines, or nothing for a job on this one alone.
/// `pod` as find_pod_job() says.
std::optional<MachinesPlan> plan_machines(const LaunchFlagSet& given, const Config& config,
                                          const EnvVars& variables, const std::optional<PodJob>& pod);

/// "8 processes = 2 machines x 4".
std::string describe_machines(const LaunchPlan& plan, const Config& config);

}  // namespace accelerate::cli
