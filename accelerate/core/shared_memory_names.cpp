#include "accelerate/core/shared_memory_names.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// The kernel's own record; readdir() allocates and must not be called after fork() in a program with threads.
struct KernelDirent {
  uint64_t inode;
  int64_t offset;
  uint16_t record_bytes;
  unsigned char type;
  char name[];
};

int remove_matches(int directory, const char* prefix, size_t prefix_bytes) noexcept {
  alignas(KernelDirent) char buffer[16384];
  int removed = 0;
  for (;;) {
    const long got = ::syscall(SYS_getdents64, directory, buffer, sizeof buffer);
    if (got <= 0) return removed;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const KernelDirent*>(buffer + at);
      if (std::strncmp(entry->name, prefix, prefix_bytes) == 0 &&
          ::unlinkat(directory, entry->name, 0) == 0) {
        ++removed;
      }
      at += entry->record_bytes;
    }
  }
}

}  // namespace

std::string shared_memory_prefix(std::string_view job_id) {
  return concat("accelerate-", static_cast<unsigned long>(::getuid()), "-", job_id, "-");
}

int remove_shared_memory(const char* prefix) noexcept {
  const size_t prefix_bytes = std::strlen(prefix);
  if (prefix_bytes == 0) return 0;
  const int directory = ::open(kSharedMemoryDirectory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return 0;
  const int removed = remove_matches(directory, prefix, prefix_bytes);
  ::close(directory);
  return removed;
}

}  // namespace accelerate
