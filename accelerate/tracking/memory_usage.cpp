#include "accelerate/tracking/memory_usage.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// The value of a line such as "VmRSS:     1234 kB", in bytes.
std::optional<int64_t> find_kib_line(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::string value = trim(std::string_view(line).substr(key.size()));
    if (const auto kib = parse_int(value.substr(0, value.find(' ')))) return *kib * 1024;
  }
  return std::nullopt;
}

int64_t kib_line(const char* path, const std::string& key) {
  if (const auto bytes = find_kib_line(path, key)) return *bytes;
  throw Error({.what = concat("looking up memory in ", path),
               .expected = concat("a line '", key, " N kB'"),
               .got = "none",
               .hint = "It needs Linux's /proc."});
}

// Null for devices without such an allocator, or before its first use.
c10::DeviceAllocator* device_allocator(at::Device device) {
  if (device.is_cpu()) return nullptr;
  try {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
  } catch (const c10::Error&) {  // none is registered
    return nullptr;
  }
}

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

// Note [Peaks]
// The kernel (VmHWM) and a device's allocator each keep one peak, for everyone. To measure a scope it has to
// begin anew; what it was until then is noted here, for scopes that are running and for the process's whole
// life.
class Peaks {
 public:
  static Peaks& of_process() {
    static Peaks instance;
    return instance;
  }

  int64_t begin_scope(at::Device device) {
    const std::lock_guard lock(mutex_);
    note();
    host_resets_ = reset_host();
    if (auto* allocator = device_allocator(device)) {
      note_device(device, *allocator);
      allocator->resetPeakStats(index_of(device));
    }
    const int64_t id = next_id_++;
    scopes_[id] = {.device = device};
    return id;
  }

  void end_scope(int64_t id) {
    const std::lock_guard lock(mutex_);
    scopes_.erase(id);
  }

  // Peaks since the scope began; the host's is 0 where that can't be told.
  struct Scope {
    at::Device device = at::kCPU;
    int64_t host_bytes = 0;
    int64_t device_bytes = 0;
  };

  Scope scope(int64_t id) {
    const std::lock_guard lock(mutex_);
    note();
    Scope& out = scopes_.at(id);
    if (auto* allocator = device_allocator(out.device)) note_device(out.device, *allocator);
    return out;
  }

  int64_t host_lifetime_bytes() {
    const std::lock_guard lock(mutex_);
    note();
    return lifetime_bytes_;
  }

  // The device's peaks of the process's whole life.
  DeviceMemory device_lifetime(at::Device device, c10::DeviceAllocator& allocator) {
    const std::lock_guard lock(mutex_);
    return note_device(device, allocator);
  }

 private:
  // Asks the kernel to begin its peak anew; false where it does not do that.
  static bool reset_host() {
    std::ofstream file("/proc/self/clear_refs");
    file << "5" << std::flush;
    return static_cast<bool>(file);
  }

  void note() {
    const int64_t peak = kib_line("/proc/self/status", "VmHWM:");
    // Without a reset only a new peak is known to be of now.
    const bool known = host_resets_ || peak > lifetime_bytes_;
    lifetime_bytes_ = std::max(lifetime_bytes_, peak);
    if (!known) return;
    for (auto& [id, scope] : scopes_) scope.host_bytes = std::max(scope.host_bytes, peak);
  }

  DeviceMemory note_device(at::Device device, c10::DeviceAllocator& allocator) {
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator.getDeviceStats(index_of(device));
    DeviceMemory& most = devices_[{device.type(), index_of(device)}];
    most.allocated_bytes = stats.allocated_bytes[kAll].current;
    most.reserved_bytes = stats.reserved_bytes[kAll].current;
    most.peak_allocated_bytes = std::max(most.peak_allocated_bytes, stats.allocated_bytes[kAll].peak);
    most.peak_reserved_bytes = std::max(most.peak_reserved_bytes, stats.reserved_bytes[kAll].peak);
    for (auto& [id, scope] : scopes_) {
      if (scope.device.type() != device.type() || index_of(scope.device) != index_of(device)) continue;
      scope.device_bytes = std::max(scope.device_bytes, stats.allocated_bytes[kAll].peak);
    }
    return most;
  }

  std::mutex mutex_;
  int64_t next_id_ = 0;
  std::map<int64_t, Scope> scopes_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, DeviceMemory> devices_;
  int64_t lifetime_bytes_ = 0;
  bool host_resets_ = false;
};

}  // namespace

MemoryUsage memory_usage(at::Device device, const MemoryUsageOptions& options) {
  MemoryUsage out;
  out.host_rss_bytes = kib_line("/proc/self/status", "VmRSS:");
  out.host_peak_rss_bytes = std::max(Peaks::of_process().host_lifetime_bytes(), out.host_rss_bytes);
  if (options.pss) out.host_pss_bytes = find_kib_line("/proc/self/smaps_rollup", "Pss:");
  if (auto* allocator = device_allocator(device)) {
    out.device = Peaks::of_process().device_lifetime(device, *allocator);
  }
  return out;
}

PeakMemoryScope::PeakMemoryScope(at::Device device) : device_(device) {
  id_ = Peaks::of_process().begin_scope(device);
  const MemoryUsage usage = memory_usage(device);
  begin_rss_bytes_ = usage.host_rss_bytes;
  if (usage.device) begin_allocated_bytes_ = usage.device->allocated_bytes;
}

PeakMemoryScope::~PeakMemoryScope() {
  Peaks::of_process().end_scope(id_);
}

PeakMemory PeakMemoryScope::peak() const {
  const auto scope = Peaks::of_process().scope(id_);
  PeakMemory out;
  if (scope.host_bytes > 0) {
    out.host_rss_bytes = std::max<int64_t>(0, scope.host_bytes - begin_rss_bytes_);
  }
  if (device_allocator(device_) != nullptr) {
    out.device_allocated_bytes = std::max<int64_t>(0, scope.device_bytes - begin_allocated_bytes_);
  }
  return out;
}

}  // namespace accelerate
