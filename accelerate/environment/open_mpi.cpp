#include <algorithm>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kName = "open_mpi";
constexpr std::string_view kCommand = "mpirun";

class OpenMpiEnvironment final : public Environment {
 public:
  std::string_view name() const override { return kName; }

  bool detected(const EnvVars& variables) const override {
    return variables.get(variables::kOmpiSize) && variables.get(variables::kOmpiRank);
  }

  Topology read(const EnvVars& variables) const override {
    Topology out;
    out.launcher = kName;
    out.rank = required_int(variables, variables::kOmpiRank, kCommand);
    out.world_size = required_int(variables, variables::kOmpiSize, kCommand);
    out.local_rank = required_int(variables, variables::kOmpiLocalRank, kCommand);
    out.local_world_size = required_int(variables, variables::kOmpiLocalSize, kCommand);
    // Open MPI names no number for this machine; with its default mapping, machine after machine is filled.
    const int per_machine = std::max(1, out.local_world_size);
    const int machines = (out.world_size + per_machine - 1) / per_machine;
    out.num_nodes = machines == 1 ? 1 : std::max(2, int_or(variables, variables::kOmpiNumNodes, machines));
    out.node_rank = machines == 1 ? 0 : std::min(out.rank / per_machine, out.num_nodes - 1);
    read_address(variables, out);
    out.job_id = job_id(variables);
    return out;
  }

 private:
  static void read_address(const EnvVars& variables, Topology& out) {
    const auto address = variables.get(variables::kMasterAddr);
    if (out.num_nodes > 1 && !address) {
      throw ConfigError(
          {.what = concat("mpirun started ", out.world_size, " ranks on ", out.num_nodes, " machines, but ",
                          variables::kMasterAddr, " does not say where rank 0 listens"),
           .hint = concat("Give it to all ranks: mpirun -x ", variables::kMasterAddr, "=HOST -x ",
                          variables::kMasterPort, "=", kDefaultMasterPort, " ...")});
    }
    out.master_addr = address.value_or("127.0.0.1");
    out.master_port = int_or(variables, variables::kMasterPort, address ? kDefaultMasterPort : 0);
  }

  static std::string job_id(const EnvVars& variables) {
    if (const auto ours = variables.get(variables::kMpirunJob)) return to_job_id(*ours);
    // The namespace comes back after a while; the transport key is random.
    std::string id = "mpi-" + variables.get(variables::kPmixNamespace)
                                  .value_or(variables.get(variables::kOmpiJobId).value_or("job"));
    if (const auto key = variables.get(variables::kOmpiTransportKey)) id += "-" + *key;
    return to_job_id(id);
  }
};

}  // namespace

std::unique_ptr<Environment> make_open_mpi_environment() {
  return std::make_unique<OpenMpiEnvironment>();
}

}  // namespace accelerate::detail
