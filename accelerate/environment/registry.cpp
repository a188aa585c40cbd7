#include "accelerate/environment/registry.h"

#include <array>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/variables.h"

namespace accelerate {
namespace {

constexpr int kMaxPort = 65535;

// What the numbers of a topology are called where they came from.
struct Names {
  std::string_view launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* node_rank;
  const char* num_nodes;
};

constexpr std::array<Names, 2> kForeignNames = {
    Names{"open_mpi", variables::kOmpiRank, variables::kOmpiSize, variables::kOmpiLocalRank,
          variables::kOmpiLocalSize, "machine number", variables::kOmpiNumNodes},
    Names{"slurm", variables::kSlurmProcId, variables::kSlurmStepNumTasks, variables::kSlurmLocalId,
          variables::kSlurmStepTasksPerNode, variables::kSlurmNodeId, variables::kSlurmStepNumNodes},
};

Names names_of(const Topology& topology) {
  for (const Names& names : kForeignNames) {
    if (names.launcher == topology.launcher) return names;
  }
  return {topology.launcher,          variables::kRank,      variables::kWorldSize,     variables::kLocalRank,
          variables::kLocalWorldSize, variables::kGroupRank, variables::kGroupWorldSize};
}

void check_count(const char* name, int count) {
  if (count < 1) throw ConfigError({.what = concat(name, "=", count), .expected = "at least 1"});
}

void check_index(const char* name, int index, const char* count_name, int count) {
  if (index >= 0 && index < count) return;
  throw ConfigError({.what = concat(name, "=", index, " does not fit ", count_name, "=", count),
                     .expected = concat("0 to ", count - 1)});
}

void check_not_more(const char* name, int part, const char* whole_name, int whole) {
  if (part <= whole) return;
  throw ConfigError({.what = concat(name, "=", part, " is more than ", whole_name, "=", whole)});
}

}  // namespace

const std::vector<std::unique_ptr<Environment>>& environments() {
  static const auto known = [] {
    std::vector<std::unique_ptr<Environment>> all;
    all.push_back(detail::make_accel_environment());
    all.push_back(detail::make_torchrun_environment());
    all.push_back(detail::make_open_mpi_environment());
    all.push_back(detail::make_slurm_environment());
    all.push_back(detail::make_plain_environment());
    return all;
  }();
  return known;
}

Topology detect_topology(const EnvVars& variables) {
  for (const auto& environment : environments()) {
    if (!environment->detected(variables)) continue;
    Topology topology = environment->read(variables);
    validate_topology(topology);
    return topology;
  }
  return {};
}

void validate_topology(const Topology& topology) {
  const Names names = names_of(topology);
  check_count(names.world_size, topology.world_size);
  check_count(names.local_world_size, topology.local_world_size);
  check_count(names.num_nodes, topology.num_nodes);
  check_index(names.rank, topology.rank, names.world_size, topology.world_size);
  check_index(names.local_rank, topology.local_rank, names.local_world_size, topology.local_world_size);
  check_index(names.node_rank, topology.node_rank, names.num_nodes, topology.num_nodes);
  check_not_more(names.local_world_size, topology.local_world_size, names.world_size, topology.world_size);
  check_not_more(names.num_nodes, topology.num_nodes, names.world_size, topology.world_size);
  if (topology.master_port < 0 || topology.master_port > kMaxPort) {
    throw ConfigError({.what = concat("environment variable ", variables::kMasterPort),
                       .expected = concat("a port from 0 to ", kMaxPort),
                       .got = std::to_string(topology.master_port)});
  }
}

}  // namespace accelerate
