#include "launcher/machines.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>

#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::cli {
namespace {

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

bool numbers_by_arrival(const Config& config) {
  return config.rdzv_backend == "c10d";
}

}  // namespace

void find_machine_rank(Config& config, const EnvVars& variables) {
  if (config.num_machines < 2 || config.given("machine_rank") || numbers_by_arrival(config)) return;
  for (const char* name : {variables::kNodeRank, variables::kSlurmNodeId, variables::kOmpiRank}) {
    // mpirun numbers processes; with one on each machine these are the machines.
    if (name == variables::kOmpiRank && variables.get_int(variables::kOmpiLocalSize) != 1) continue;
    const auto rank = variables.get_int(name);
    if (!rank || *rank < 0) continue;
    config.machine_rank = *rank;
    config.origins["machine_rank"] = {Origin::kDetected, name, 0};
    return;
  }
}

void say_machine_rank(const Config& config) {
  const ValueOrigin origin = config.origin_of("machine_rank");
  if (origin.origin != Origin::kDetected) return;
  // In one piece: launchers of several machines may share a terminal or a log.
  std::cerr << concat("accel: machine_rank ", config.machine_rank, " (from ", origin.detail, ")\n");
}

std::optional<MachinesPlan> plan_machines(const LaunchFlagSet& given, const Config& config,
                                          const EnvVars& variables, const std::optional<PodJob>& pod) {
  if (config.num_machines < 2) return std::nullopt;
  const LaunchFlags& flags = given.flags();
  MachinesPlan out;
  out.min_machines = out.max_machines = static_cast<int>(config.num_machines);
  if (!flags.nnodes.empty()) out.min_machines = given.machine_range().first;
  if (pod && pod->min_machines) out.min_machines = std::min(*pod->min_machines, out.max_machines);
  if (!numbers_by_arrival(config)) out.machine_rank = static_cast<int>(config.machine_rank);
  out.address = config.main_process_ip.value_or("");
  out.port = static_cast<int>(config.main_process_port.value_or(detail::kDefaultMasterPort));
  out.token = flags.rdzv_id;
  if (out.token.empty() && pod) out.token = pod->job_name.value_or("");
  // Two jobs of a batch system that were given the same machine and port must not mix.
  if (out.token.empty()) {
    if (const auto job = variables.get(variables::kSlurmJobId)) out.token = concat("slurm-", *job);
  }
  out.connect_timeout = from_seconds(flags.connect_timeout_s);
  out.heartbeat_timeout = from_seconds(flags.heartbeat_timeout_s);
  out.last_call = from_seconds(flags.last_call_s);
  return out;
}

std::string describe_machines(const LaunchPlan& plan, const Config& config) {
  const int64_t machines = config.num_machines;
  const int64_t local = plan.starter ? plan.num_processes / machines : plan.num_processes;
  const int64_t processes = machines * local;
  std::string out = concat(processes, processes == 1 ? " process" : " processes", " = ", machines,
                           machines == 1 ? " machine" : " machines", " x ", local);
  if (plan.machines && plan.machines->min_machines < machines)
    out += concat(" (", plan.machines->min_machines, " at least)");
  return out;
}

}  // namespace accelerate::cli
