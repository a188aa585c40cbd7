#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Which CPUs share a core, a NUMA node, or a node with a GPU, as the kernel tells it under /sys. `sysfs` is
// another folder in tests. What can't be read is unknown, never an error.

namespace accelerate {

/// "0-3,8,10-11" as numbers, in the order of the text; parts that are none are left out.
std::vector<int> parse_cpu_list(std::string_view text);
/// The reverse: {0, 1, 2, 3, 8} gives "0-3,8".
std::string format_cpu_list(const std::vector<int>& cpus);

/// CPUs that this process may run on (its affinity mask); empty where the kernel does not say.
std::vector<int> allowed_cpus();

/// `cpus` grouped by core, NUMA node after NUMA node: hyper-threads of one core stand together. A CPU of
/// which nothing is known is a core of its own.
std::vector<std::vector<int>> cores_of(const std::vector<int>& cpus, const std::string& sysfs = "/sys");

/// NUMA node of each NVIDIA device in the order of their bus addresses, nothing for one whose node is not
/// known.
std::vector<std::optional<int>> numa_nodes_of_gpus(const std::string& sysfs = "/sys");

/// The share of each of `ranks` in `cpus`: disjoint, neighbours on a NUMA node, cores whole where there are
/// as many as ranks, and sizes that differ by one core at most. `nodes` holds the NUMA nodes of the ranks'
/// devices; where all are known and each has a CPU for every rank of its own, ranks share the CPUs of their
/// nodes instead. Empty when there are fewer CPUs than ranks.
std::vector<std::vector<int>> share_cpus(const std::vector<int>& cpus, int ranks,
                                         const std::vector<std::optional<int>>& nodes = {},
                                         const std::string& sysfs = "/sys");

}  // namespace accelerate
