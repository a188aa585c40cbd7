#include "accelerate/core/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "accelerate/core/error.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {

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
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace accelerate
