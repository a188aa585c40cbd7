#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace accelerate {

/// What torch's allocator of one device says.
struct DeviceMemory {
  /// In tensors.
  int64_t allocated_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  /// Taken from the device, with what is kept for reuse.
  int64_t reserved_bytes = 0;
  int64_t peak_reserved_bytes = 0;
};

struct MemoryUsage {
  /// Pages of this process in memory, shared ones counted whole (VmRSS). The kernel keeps it per thread and
  /// adds up now and then: it may be some hundred KiB off.
  int64_t host_rss_bytes = 0;
  /// The most that it was since the process started.
  int64_t host_peak_rss_bytes = 0;
  /// Pages in memory, each divided by the number of processes that share it: over the ranks of a machine this
  /// adds up to what they take together. Only where asked for.
  std::optional<int64_t> host_pss_bytes = std::nullopt;
  /// Nothing for devices without an allocator that keeps such numbers, such as the CPU.
  std::optional<DeviceMemory> device = std::nullopt;
};

struct MemoryUsageOptions {
  /// Look up host_pss_bytes too, for which the kernel walks all pages: milliseconds for each GiB.
  bool pss = false;
};

/// Local. What this process takes now, on the host and on `device`. Reads /proc.
/// @throws Error where /proc is missing.
MemoryUsage memory_usage(at::Device device = at::kCPU, const MemoryUsageOptions& options = {});

/// What was taken at most within a scope, above what was taken at its begin.
struct PeakMemory {
  /// Nothing where the kernel keeps no peak of the scope's own, and the process's peak is an older one.
  std::optional<int64_t> host_rss_bytes = std::nullopt;
  /// Of allocated_bytes; nothing as in MemoryUsage::device.
  std::optional<int64_t> device_allocated_bytes = std::nullopt;
};

/// Local. Measures PeakMemory from its constructor on. Scopes may nest and overlap, also on several threads;
/// they all see the memory of the whole process. The peaks of the kernel and of the device's allocator begin
/// anew with each scope, so that torch's own "peak since" numbers do too; memory_usage() still knows the
/// peaks of before.
class PeakMemoryScope {
 public:
  explicit PeakMemoryScope(at::Device device = at::kCPU);
  ~PeakMemoryScope();
  PeakMemoryScope(const PeakMemoryScope&) = delete;
  PeakMemoryScope& operator=(const PeakMemoryScope&) = delete;

  /// Since the scope's begin.
  PeakMemory peak() const;

 private:
  at::Device device_;
  int64_t begin_rss_bytes_ = 0;
  int64_t begin_allocated_bytes_ = 0;
  int64_t id_ = 0;
};

}  // namespace accelerate
