#pragma once

#include <functional>
#include <string>

#include "accelerate/config/config.h"
#include "accelerate/environment/env_vars.h"
#include "accelerate/launch/launch_plan.h"

namespace accelerate::cli {

/// Turns a plan whose program, arguments and environment are complete into one that starts `mpirun`, which
/// starts the ranks: as many as config.num_processes, over the machines of the hostfile or on this one. The
/// ranks get the plan's variables by -x. Nothing is started.
/// @throws LaunchError when there is no mpirun or it is not Open MPI's, ConfigError for a hostfile that is
/// missing or malformed, or has fewer slots than there are processes; each comes out of one call of `check`,
/// which may catch it: the plan is then as complete as it can be.
void start_through_mpirun(LaunchPlan& plan, const Config& config, const EnvVars& variables,
                          const std::function<void(const std::function<void()>&)>& check);

}  // namespace accelerate::cli
