#pragma once

#include <cstddef>

namespace accelerate {

/// Notes memory that this process holds write-protected for data sets. A write to it is a programming error;
/// once something is noted, the process's last lines after such a write say so before it ends with SIGSEGV
/// (handlers that were installed before are called as ever).
class ReadOnlyMemory {
 public:
  /// Notes [data, data + size_bytes).
  static void add(const void* data, size_t size_bytes) noexcept;
  /// Forgets what begins at `data`.
  static void remove(const void* data) noexcept;
  /// True if `data` lies in noted memory.
  static bool contains(const void* data) noexcept;
};

}  // namespace accelerate
