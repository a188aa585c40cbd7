#include "launcher/devices.h"

#include <algorithm>
#include <vector>

#include "accelerate/core/cpu_topology.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"

namespace accelerate::cli {
namespace {

std::vector<std::string> visible_devices(const MachineFacts& machine) {
  std::vector<std::string> out = machine.visible_ids;
  for (int device = static_cast<int>(out.size()); device < machine.cuda_devices; ++device)
    out.push_back(std::to_string(device));
  return out;
}

std::string where_visible(const EnvVars& variables) {
  const auto listed = variables.get(variables::kCudaVisibleDevices);
  return listed ? concat(variables::kCudaVisibleDevices, "=", *listed) : std::string("this machine");
}

// True if somebody said that the job stays on the CPU; false if that was only concluded from the lack of
// devices.
bool cpu_was_chosen(const Config& config) {
  const auto chosen = [&config](std::string_view key) {
    return config.origin_of(key).origin > Origin::kDetected;
  };
  return (config.use_cpu && chosen("use_cpu")) ||
         (config.distributed_type == DistributedType::kMultiCpu && chosen("distributed_type"));
}

// The NUMA node of the device of each rank; empty where ranks have no devices of their own.
std::vector<std::optional<int>> nodes_of_ranks(const Config& config, size_t ranks) {
  if (config.distributed_type != DistributedType::kMultiGpu || config.use_cpu) return {};
  const std::vector<std::string> devices = config.gpu_ids.value_or(visible_devices(config.machine));
  const std::vector<std::optional<int>> nodes = numa_nodes_of_gpus();
  std::vector<std::optional<int>> out(ranks);
  for (size_t rank = 0; rank < std::min(ranks, devices.size()); ++rank) {
    const auto number = parse_int(devices[rank]);  // a device named otherwise stays unknown
    if (number && *number >= 0 && static_cast<size_t>(*number) < nodes.size())
      out[rank] = nodes[static_cast<size_t>(*number)];
  }
  return out;
}

}  // namespace

std::optional<std::string> devices_of_ranks(const Config& config, const EnvVars& variables) {
  if (!config.gpu_ids || cpu_was_chosen(config)) return std::nullopt;
  const std::vector<std::string> visible = visible_devices(config.machine);
  const std::vector<std::string> missing = missing_devices(config.machine, *config.gpu_ids);
  if (!missing.empty()) {
    const std::string seen = visible.empty() ? "none" : join(visible, ",");
    throw ConfigError({.what = concat("gpu_ids asks for device ", join(missing, ","), ", which ",
                                      where_visible(variables), " does not offer"),
                       .expected = concat("devices among: ", seen),
                       .got = join(*config.gpu_ids, ","),
                       .hint = visible.empty() ? "No CUDA device is visible here; use --cpu." : ""});
  }
  const auto ranks = static_cast<size_t>(config.num_processes.value_or(1) / config.num_machines);
  if (config.distributed_type == DistributedType::kMultiGpu && config.gpu_ids->size() < ranks) {
    throw ConfigError({.what = concat(ranks, " processes on each machine, but gpu_ids names ",
                                      config.gpu_ids->size(), " devices (", join(*config.gpu_ids, ","), ")"),
                       .hint = "Name as many devices as processes."});
  }
  return join(*config.gpu_ids, ",");
}

std::vector<std::vector<int>> cpus_of_ranks(const Config& config, [[maybe_unused]] const EnvVars& variables) {
  if (!config.enable_cpu_affinity) return {};
  const auto ranks = static_cast<int>(config.num_processes.value_or(1) / config.num_machines);
  const std::vector<int> cpus = allowed_cpus();
  auto shares = share_cpus(cpus, ranks, nodes_of_ranks(config, static_cast<size_t>(ranks)));
  if (!shares.empty()) return shares;
  throw ConfigError({.what = concat("enable_cpu_affinity: ", ranks, " processes on this machine, but it has ",
                                    cpus.size(), cpus.size() == 1 ? " CPU" : " CPUs", " for them"),
                     .hint = concat("Each needs one of its own: lower --num_processes, or leave "
                                    "enable_cpu_affinity out.")});
}

}  // namespace accelerate::cli
