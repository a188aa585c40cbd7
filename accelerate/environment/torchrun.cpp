#include <algorithm>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kName = "torchrun";

// torchrun, and whoever sets the same variables: Kubernetes' PyTorchJob, or a user by hand.
class TorchrunEnvironment final : public Environment {
 public:
  std::string_view name() const override { return kName; }

  bool detected(const EnvVars& variables) const override {
    if (variables.get(variables::kTorchElasticRunId)) return true;
    return variables.get(variables::kRank) && variables.get(variables::kWorldSize);
  }

  Topology read(const EnvVars& variables) const override {
    Topology out;
    out.launcher = kName;
    out.rank = required_int(variables, variables::kRank, kName);
    out.world_size = required_int(variables, variables::kWorldSize, kName);
    read_address(variables, out);
    read_local(variables, out);
    out.agent_store = variables.get_bool(variables::kTorchElasticUseAgentStore).value_or(false);
    out.restart_count = int_or(variables, variables::kTorchElasticRestartCount, 0);
    // Without a run id (or with torchrun's default "none"), address and port tell jobs apart: two at once
    // can't share them.
    const std::string run_id =
        variables.get(variables::kTorchElasticRunId).value_or("env-" + out.master_addr);
    out.job_id = to_job_id(concat(run_id, "-", out.master_port));
    return out;
  }

 private:
  static void read_address(const EnvVars& variables, Topology& out) {
    const auto address = variables.get(variables::kMasterAddr);
    if (!address && out.world_size > 1) {
      throw ConfigError({.what = concat("environment variable ", variables::kMasterAddr,
                                        " is missing: ", variables::kWorldSize, " is ", out.world_size,
                                        ", so the ranks must know where rank 0 listens"),
                         .hint = concat("Set ", variables::kMasterAddr, " and ", variables::kMasterPort,
                                        ", or start the program through `accel launch`.")});
    }
    out.master_addr = address.value_or("127.0.0.1");
    out.master_port = int_or(variables, variables::kMasterPort, out.world_size > 1 ? kDefaultMasterPort : 0);
  }

  // PyTorchJob gives no local ranks: it runs one process a pod. By hand on one machine the address is a
  // loopback one, and then all ranks are here.
  static void read_local(const EnvVars& variables, Topology& out) {
    const bool all_here = is_loopback(out.master_addr);
    const bool has_local_rank = variables.get(variables::kLocalRank).has_value();
    out.local_rank = int_or(variables, variables::kLocalRank, all_here ? out.rank : 0);
    const int guess = all_here ? out.world_size : has_local_rank ? std::max(1, out.local_rank + 1) : 1;
    out.local_world_size = int_or(variables, variables::kLocalWorldSize, guess);
    const int per_machine = std::max(1, out.local_world_size);
    out.num_nodes =
        int_or(variables, variables::kGroupWorldSize, (out.world_size + per_machine - 1) / per_machine);
    out.node_rank = int_or(variables, variables::kGroupRank, out.rank / per_machine);
  }
};

}  // namespace

std::unique_ptr<Environment> make_torchrun_environment() {
  return std::make_unique<TorchrunEnvironment>();
}

}  // namespace accelerate::detail
