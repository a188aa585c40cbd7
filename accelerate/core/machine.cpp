#include "accelerate/core/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {
namespace {

// First bytes of a file of /proc or /sys; empty when it can't be read.
std::string read_small_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  std::array<char, 256> text;
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  return got > 0 ? trim(std::string_view(text.data(), static_cast<size_t>(got))) : std::string();
}

std::vector<int> allowed_cpus() {
  // More CPUs than a cpu_set_t holds need a larger mask: double it until the kernel is content.
  for (int capacity = CPU_SETSIZE; capacity <= 64 * CPU_SETSIZE; capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(capacity);
    std::vector<int> cpus;
    const bool known = ::sched_getaffinity(0, bytes, mask) == 0;
    for (int cpu = 0; known && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask)) cpus.push_back(cpu);
    }
    CPU_FREE(mask);
    if (known) return cpus;
  }
  return {};
}

// CPUs' worth of time that the container may use, if it is limited.
std::optional<double> cgroup_cpu_quota() {
  const std::string v2 = read_small_file("/sys/fs/cgroup/cpu.max");
  if (!v2.empty()) {
    const std::vector<std::string> parts = split(v2, ' ');
    const auto quota = parse_double(parts[0]);
    const auto period = parts.size() > 1 ? parse_double(parts[1]) : std::nullopt;
    if (quota && period && *period > 0) return *quota / *period;
    return std::nullopt;
  }
  const auto quota = parse_double(read_small_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  const auto period = parse_double(read_small_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (quota && period && *quota > 0 && *period > 0) return *quota / *period;
  return std::nullopt;
}

}  // namespace

int logical_cpus() {
  const int allowed = static_cast<int>(allowed_cpus().size());
  return std::max(1, allowed > 0 ? allowed : static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

int physical_cores() {
  std::set<std::string> cores;
  int unknown = 0;
  for (const int cpu : allowed_cpus()) {
    const std::string siblings =
        read_small_file(concat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    if (siblings.empty()) {
      ++unknown;
    } else {
      cores.insert(siblings);
    }
  }
  int count = static_cast<int>(cores.size()) + unknown;
  if (count == 0) count = logical_cpus();
  if (const auto quota = cgroup_cpu_quota()) count = std::min(count, static_cast<int>(std::ceil(*quota)));
  return std::max(1, count);
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

}  // namespace accelerate
