#include "accelerate/environment/slurm.h"

#include <algorithm>
#include <optional>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kName = "slurm";
constexpr std::string_view kCommand = "srun";

// Step ids from here up mark no srun step of the user: batch script, external and interactive step (slurm.h).
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

// Ports for jobs on several machines, outside the ephemeral range; the job id spreads jobs over them.
constexpr int64_t kFirstPort = 20000;
constexpr int64_t kPortCount = 10000;

class SlurmEnvironment final : public Environment {
 public:
  std::string_view name() const override { return kName; }

  bool detected(const EnvVars& variables) const override {
    // A batch script (sbatch) and a shell under salloc carry many SLURM_* variables, yet nobody started ranks
    // there.
    if (!variables.get(variables::kSlurmStepNumTasks) || !variables.get(variables::kSlurmProcId))
      return false;
    const auto step = parse_int(variables.get(variables::kSlurmStepId).value_or(""));
    return step && *step >= 0 && *step < kFirstSpecialStep;
  }

  Topology read(const EnvVars& variables) const override {
    Topology out;
    out.launcher = kName;
    out.rank = required_int(variables, variables::kSlurmProcId, kCommand);
    out.world_size = required_int(variables, variables::kSlurmStepNumTasks, kCommand);
    out.local_rank = required_int(variables, variables::kSlurmLocalId, kCommand);
    out.node_rank = int_or(variables, variables::kSlurmNodeId, 0);
    out.num_nodes = int_or(variables, variables::kSlurmStepNumNodes, 1);
    out.local_world_size =
        slurm_tasks_on_node(variables.get(variables::kSlurmStepTasksPerNode).value_or(""), out.node_rank);
    if (out.local_world_size == 0 && out.num_nodes == 1) out.local_world_size = out.world_size;
    if (out.local_world_size == 0) {
      throw ConfigError({.what = concat("environment variable ", variables::kSlurmStepTasksPerNode,
                                        " does not say how many tasks run on machine ", out.node_rank),
                         .expected = "a text such as 2(x3),1",
                         .got = variables.get(variables::kSlurmStepTasksPerNode).value_or("nothing")});
    }
    out.restart_count = int_or(variables, variables::kSlurmRestartCount, 0);
    const int64_t job = variables.get_int(variables::kSlurmJobId).value_or(0);
    const int64_t step = variables.get_int(variables::kSlurmStepId).value_or(0);
    read_address(variables, job, step, out);
    out.job_id = to_job_id(concat("slurm-", job, ".", step));
    return out;
  }

 private:
  static void read_address(const EnvVars& variables, int64_t job, int64_t step, Topology& out) {
    const auto address = variables.get(variables::kMasterAddr);
    if (out.num_nodes == 1 && !address) {
      out.master_port = int_or(variables, variables::kMasterPort, 0);
      return;
    }
    const auto nodes = variables.get(variables::kSlurmStepNodeList);
    if (!address && !nodes) {
      throw ConfigError(
          {.what = concat("neither ", variables::kSlurmStepNodeList, " nor ", variables::kMasterAddr,
                          " says where rank 0 listens, though the step runs on ", out.num_nodes, " machines"),
           .hint = concat("Set ", variables::kMasterAddr, " and ", variables::kMasterPort, " before srun.")});
    }
    out.master_addr = address ? *address : first_slurm_host(*nodes);
    const auto chosen = static_cast<int>(kFirstPort + (job + 131 * step) % kPortCount);
    out.master_port = int_or(variables, variables::kMasterPort, chosen);
  }
};

}  // namespace

std::string first_slurm_host(std::string_view list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t close = std::min(list.find(']', at), list.size());
    const std::string_view range = list.substr(at + 1, close - at - 1);
    host += range.substr(0, range.find_first_of("-,"));
    at = close + 1;
  }
  return trim(host);
}

int slurm_tasks_on_node(std::string_view tasks_per_node, int node) {
  int64_t first = 0;
  for (const std::string& part : split(tasks_per_node, ',')) {
    const size_t open = part.find("(x");
    const auto tasks = parse_int(part.substr(0, open));
    const auto repeats = open == std::string::npos
                             ? std::optional<int64_t>(1)
                             : parse_int(part.substr(open + 2, part.find(')') - open - 2));
    if (!tasks || !repeats) return 0;
    if (node < first + *repeats) return static_cast<int>(*tasks);
    first += *repeats;
  }
  return 0;
}

std::unique_ptr<Environment> make_slurm_environment() {
  return std::make_unique<SlurmEnvironment>();
}

}  // namespace accelerate::detail
