#include "accelerate/launch/rank_environment.h"

#include <unistd.h>

#include <algorithm>

#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"

namespace accelerate {
namespace detail {
namespace {

// Left over from a launcher around us; they would mislead a rank of ours.
constexpr const char* kForeign[] = {variables::kTorchElasticUseAgentStore,
                                    variables::kTorchElasticErrorFile,
                                    variables::kListenFd,
                                    variables::kStorePort,
                                    variables::kTerminal,
                                    variables::kMpirunJob};
// The ranks of a starter learn from it who they are.
constexpr const char* kOfRanks[] = {
    variables::kRank,      variables::kLocalRank, variables::kWorldSize,      variables::kLocalWorldSize,
    variables::kGroupRank, variables::kLauncher,  variables::kGroupWorldSize, variables::kTorchElasticRunId};

std::vector<std::string> entries(const EnvVars& variables) {
  std::vector<std::string> out;
  out.reserve(variables.values().size());
  for (const auto& [name, value] : variables.values()) out.push_back(concat(name, "=", value));
  return out;
}

void set_rank_variables(const LaunchPlan& plan, const JobFacts& job, int local_rank, EnvVars& out) {
  const int rank = job.first_rank + local_rank;
  out.set(variables::kRank, std::to_string(rank));
  out.set(variables::kLocalRank, std::to_string(local_rank));
  out.set(variables::kWorldSize, std::to_string(job.world_size));
  out.set(variables::kLocalWorldSize, std::to_string(plan.num_processes));
  out.set(variables::kGroupRank, std::to_string(job.machine));
  out.set(variables::kGroupWorldSize, std::to_string(job.machines));
  out.set(variables::kMasterAddr, job.master_addr);
  out.set(variables::kMasterPort, std::to_string(job.master_port));
  if (job.store_port != 0) out.set(variables::kStorePort, std::to_string(job.store_port));
  out.set(variables::kTorchElasticRestartCount, std::to_string(job.restart_count));
  out.set(variables::kTorchElasticMaxRestarts, std::to_string(plan.max_restarts));
  out.set(variables::kLauncher, "accel");
  if (!job.job_id.empty()) {
    out.set(variables::kJobId, job.job_id);
    out.set(variables::kTorchElasticRunId, job.job_id);
  }
  if (job.listen_fd && rank == kStoreRank) out.set(variables::kListenFd, std::to_string(*job.listen_fd));
}

EnvVars rank_variables(const LaunchPlan& plan, const JobFacts& job, int local_rank, int threads) {
  EnvVars out = plan.base_environment;
  for (const char* name : kForeign) out.unset(name);
  // What the user has set goes on as it is, also a list.
  if (plan.num_cpu_threads || !out.get(variables::kOmpNumThreads)) {
    const auto at = static_cast<size_t>(local_rank);
    const bool pinned = !plan.num_cpu_threads && at < plan.rank_cpus.size();
    const auto own = static_cast<int>(pinned ? plan.rank_cpus[at].size() : 0);
    out.set(variables::kOmpNumThreads, std::to_string(pinned ? own : threads));
  }
  for (const auto& [name, value] : plan.environment) out.set(name, value);
  if (static_cast<size_t>(local_rank) < plan.rank_environment.size()) {
    for (const auto& [name, value] : plan.rank_environment[static_cast<size_t>(local_rank)])
      out.set(name, value);
  }
  const bool shown = plan.output.log_directory.empty() || (plan.output.shown_streams & kStdoutStream) != 0;
  if (shown && ::isatty(STDOUT_FILENO) != 0) out.set(variables::kTerminal, "1");
  set_rank_variables(plan, job, local_rank, out);
  return out;
}

}  // namespace

std::vector<std::string> rank_environment(const LaunchPlan& plan, const JobFacts& job, int local_rank,
                                          int threads) {
  return entries(rank_variables(plan, job, local_rank, threads));
}

bool is_set_by_launcher(std::string_view name) {
  static constexpr std::string_view kMore[] = {variables::kMasterAddr,
                                               variables::kMasterPort,
                                               variables::kTorchElasticRestartCount,
                                               variables::kTorchElasticMaxRestarts,
                                               variables::kJobId,
                                               variables::kStorePort,
                                               variables::kListenFd};
  return std::find(std::begin(kOfRanks), std::end(kOfRanks), name) != std::end(kOfRanks) ||
         std::find(std::begin(kMore), std::end(kMore), name) != std::end(kMore);
}

std::vector<std::string> starter_environment(const LaunchPlan& plan, const std::string& job_id) {
  EnvVars out = plan.base_environment;
  for (const char* name : kForeign) out.unset(name);
  for (const char* name : kOfRanks) out.unset(name);
  for (const auto& [name, value] : plan.environment) out.set(name, value);
  out.set(variables::kMpirunJob, job_id);
  return entries(out);
}

}  // namespace detail

int threads_per_rank(const LaunchPlan& plan) {
  if (plan.num_cpu_threads) return *plan.num_cpu_threads;
  if (const auto users = plan.base_environment.get(variables::kOmpNumThreads)) {
    // A list ("4,2") is legal for nested parallelism; the first number is the outer one; the ranks get
    // the text itself.
    if (const auto first = parse_int(split(*users, ',').front()); first && *first > 0)
      return static_cast<int>(*first);
  }
  return std::max(1, physical_cores() / std::max(1, plan.num_processes));
}

std::map<std::string, std::string> preview_rank_environment(const LaunchPlan& plan, int local_rank,
                                                            int port) {
  detail::JobFacts job{.job_id = {},
                       .master_addr = "127.0.0.1",
                       .master_port = port,
                       .listen_fd = {},
                       .world_size = plan.num_processes};
  if (plan.machines) {
    job.master_addr = plan.machines->address;
    job.machine = plan.machines->machine_rank.value_or(0);
    job.machines = plan.machines->max_machines;
    job.first_rank = job.machine * plan.num_processes;
    job.world_size = job.machines * plan.num_processes;
  }
  std::map<std::string, std::string> out;
  for (const std::string& entry : detail::rank_environment(plan, job, local_rank, threads_per_rank(plan))) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const auto before = plan.base_environment.values().find(name);
    const bool inherited =
        before != plan.base_environment.values().end() && before->second == entry.substr(equals + 1);
    if (!inherited) out[name] = entry.substr(equals + 1);
  }
  return out;
}

}  // namespace accelerate
