#include "accelerate/core/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;
using Cpus = std::vector<int>;

constexpr const char* kNvidia = "0x10de";
constexpr const char* kDisplayClass = "0x03";  // and what follows: VGA or 3D controller
constexpr int kMostCpus = 1 << 20;

// First line of a file of /sys; empty when it can't be read.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return trim(text);
}

// Node of every CPU.
std::map<int, int> nodes_of_cpus(const std::string& sysfs) {
  std::map<int, int> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(sysfs + "/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const auto node = name.starts_with("node") ? parse_int(name.substr(4)) : std::nullopt;
    if (!node) continue;
    for (const int cpu : parse_cpu_list(first_line(entry.path() / "cpulist")))
      out[cpu] = static_cast<int>(*node);
  }
  return out;
}

// Contiguous parts of `items`, as equal as can be.
template <typename Item>
std::vector<std::vector<Item>> split_evenly(const std::vector<Item>& items, size_t parts) {
  std::vector<std::vector<Item>> out(parts);
  for (size_t part = 0; part < parts; ++part) {
    const auto at = [&](size_t i) {
      return items.begin() + static_cast<std::ptrdiff_t>(i * items.size() / parts);
    };
    out[part].assign(at(part), at(part + 1));
  }
  return out;
}

Cpus flat(const std::vector<Cpus>& cores) {
  Cpus out;
  for (const Cpus& core : cores) out.insert(out.end(), core.begin(), core.end());
  return out;
}

// Empty when there are too few.
std::vector<Cpus> share_cores(const std::vector<Cpus>& cores, size_t ranks) {
  const Cpus cpus = flat(cores);
  if (cpus.size() < ranks) return {};
  std::vector<Cpus> out;
  if (cores.size() < ranks) {
    out = split_evenly(cpus, ranks);
  } else {
    for (const auto& part : split_evenly(cores, ranks)) out.push_back(flat(part));
  }
  for (Cpus& part : out) std::sort(part.begin(), part.end());
  return out;
}

// By the nodes of the ranks' devices; empty where that can't be done.
std::vector<Cpus> share_by_node(const Cpus& cpus, const std::vector<std::optional<int>>& nodes,
                                const std::string& sysfs) {
  std::map<int, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (!nodes[rank]) return {};
    ranks_of[*nodes[rank]].push_back(rank);
  }
  const std::map<int, int> node_of = nodes_of_cpus(sysfs);
  std::vector<Cpus> out(nodes.size());
  for (const auto& [node, ranks] : ranks_of) {
    Cpus near;
    std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(near), [&, node = node](int cpu) {
      const auto found = node_of.find(cpu);
      return found != node_of.end() && found->second == node;
    });
    std::vector<Cpus> shares = share_cores(cores_of(near, sysfs), ranks.size());
    if (shares.empty()) return {};
    for (size_t i = 0; i < ranks.size(); ++i) out[ranks[i]] = std::move(shares[i]);
  }
  return out;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  Cpus out;
  for (const std::string& part : split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_int(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_int(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= kMostCpus) continue;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) out.push_back(static_cast<int>(cpu));
  }
  return out;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::vector<std::string> parts;
  for (size_t from = 0; from < cpus.size();) {
    size_t to = from;
    while (to + 1 < cpus.size() && cpus[to + 1] == cpus[to] + 1) ++to;
    parts.push_back(from == to ? std::to_string(cpus[from]) : concat(cpus[from], "-", cpus[to]));
    from = to + 1;
  }
  return join(parts, ",");
}

std::vector<int> allowed_cpus() {
  // More CPUs than a cpu_set_t holds need a larger mask: double it until the kernel is content.
  for (int capacity = CPU_SETSIZE; capacity <= 64 * CPU_SETSIZE; capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    Cpus cpus;
    const bool known = ::sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; known && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (known) return cpus;
  }
  return {};
}

std::vector<std::vector<int>> cores_of(const std::vector<int>& cpus, const std::string& sysfs) {
  const std::map<int, int> node_of = nodes_of_cpus(sysfs);
  // Sorted by node, then by the first CPU of the core.
  std::map<std::pair<int, int>, Cpus> cores;
  for (const int cpu : cpus) {
    const auto node = node_of.find(cpu);
    const Cpus siblings = parse_cpu_list(
        first_line(concat(sysfs, "/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list")));
    const int first = siblings.empty() ? cpu : siblings.front();
    cores[{node == node_of.end() ? 0 : node->second, first}].push_back(cpu);
  }
  std::vector<Cpus> out;
  for (auto& [place, core] : cores) out.push_back(std::move(core));
  return out;
}

std::vector<std::optional<int>> numa_nodes_of_gpus(const std::string& sysfs) {
  std::set<fs::path> devices;  // sorted by bus address
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(sysfs + "/bus/pci/devices", error)) {
    const bool gpu = first_line(entry.path() / "vendor") == kNvidia &&
                     first_line(entry.path() / "class").starts_with(kDisplayClass);
    if (gpu) devices.insert(entry.path());
  }
  std::vector<std::optional<int>> out;
  for (const fs::path& device : devices) {
    const auto node = parse_int(first_line(device / "numa_node"));
    const bool known = node && *node >= 0;
    out.push_back(known ? std::optional<int>(static_cast<int>(*node)) : std::nullopt);
  }
  return out;
}

std::vector<std::vector<int>> share_cpus(const std::vector<int>& cpus, int ranks,
                                         const std::vector<std::optional<int>>& nodes,
                                         const std::string& sysfs) {
  const auto count = static_cast<size_t>(std::max(ranks, 1));
  if (nodes.size() == count) {
    if (auto shares = share_by_node(cpus, nodes, sysfs); !shares.empty()) return shares;
  }
  return share_cores(cores_of(cpus, sysfs), count);
}

}  // namespace accelerate
