#include "accelerate/core/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>

#include "accelerate/core/error.h"
#include "accelerate/core/read_only_memory.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {
namespace {

// All mappings by where they begin, so that protect() finds the one an address lies in.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, FileMapping*> mappings;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // tensors may outlive static objects
  return instance;
}

}  // namespace

FileMapping::FileMapping(const std::string& path) : path_(path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw DataError({.what = "opening " + path, .got = errno_text(errno), .hint = "Check the path."});
  }
  if (!S_ISREG(info.st_mode)) {
    throw DataError(
        {.what = path, .expected = "a file", .got = S_ISDIR(info.st_mode) ? "a folder" : "a device"});
  }
  size_bytes_ = static_cast<size_t>(info.st_size);
  if (size_bytes_ == 0) return;  // nothing to map; mmap refuses a length of 0
  void* address =
      ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
  if (address == MAP_FAILED) throw DataError({.what = "mapping " + path, .got = errno_text(errno)});
  data_ = static_cast<std::byte*>(address);
  const std::lock_guard lock(registry().mutex);
  registry().mappings.emplace(data_, this);
}

FileMapping::~FileMapping() {
  if (data_ == nullptr) return;
  {
    const std::lock_guard lock(registry().mutex);
    registry().mappings.erase(data_);
  }
  if (read_only_) ReadOnlyMemory::remove(data_);
  ::munmap(data_, size_bytes_);
}

void FileMapping::release(std::span<const std::byte> bytes) const noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool FileMapping::protect(const void* data) {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto found = registry().mappings.upper_bound(address);
  if (found == registry().mappings.begin()) return false;
  FileMapping& mapping = *(--found)->second;
  if (address >= mapping.data_ + mapping.size_bytes_) return false;
  if (mapping.read_only_) return true;
  if (::mprotect(mapping.data_, mapping.size_bytes_, PROT_READ) != 0) return false;
  mapping.read_only_ = true;
  ReadOnlyMemory::add(mapping.data_, mapping.size_bytes_);
  return true;
}

}  // namespace accelerate
