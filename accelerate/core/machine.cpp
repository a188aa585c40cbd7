#include "accelerate/core/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "accelerate/core/cpu_topology.h"
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
  int count = static_cast<int>(cores_of(allowed_cpus()).size());
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
