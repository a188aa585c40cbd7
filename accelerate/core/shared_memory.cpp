#include "accelerate/core/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "accelerate/core/error.h"
#include "accelerate/core/file_size_limit.h"
#include "accelerate/core/read_only_memory.h"
#include "accelerate/core/shared_memory_names.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::string random_hex() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) value = reinterpret_cast<uintptr_t>(&value);
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string user_prefix() {
  return concat("accelerate-", ::getuid(), "-");
}

uint64_t free_bytes(const std::string& directory) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

bool is_tmpfs_full(int error) {
  return error == ENOSPC || error == ENOMEM || error == EDQUOT;
}

int reserve(int fd, size_t size_bytes) {
  const FileSizeLimitAsError limit;
  return ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
}

// The limit of this process on file sizes, for people.
std::string file_size_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  return concat(limit.rlim_cur, " bytes (", format_bytes(limit.rlim_cur), ")");
}

UniqueFd open_segment(const std::string& path, size_t size_bytes, int access) {
  UniqueFd fd(::open(path.c_str(), access | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw DataError(
        {.what = concat("attaching to the shared memory at ", path),
         .got = errno_text(errno),
         .hint = "The rank that built it may have ended, or /dev/shm is not shared between the ranks."});
  }
  if (info.st_uid != ::getuid() || static_cast<size_t>(info.st_size) < size_bytes) {
    throw DataError({.what = concat("the shared memory at ", path),
                     .expected = concat(size_bytes, " bytes of user ", ::getuid()),
                     .got = concat(info.st_size, " bytes of user ", info.st_uid)});
  }
  return fd;
}

}  // namespace

SharedMemoryMapping::SharedMemoryMapping(int fd, size_t size_bytes, bool writable, const std::string& what)
    : size_bytes_(size_bytes), writable_(writable) {
  void* address =
      ::mmap(nullptr, size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw DataError({.what = concat("mapping ", what, " (", format_bytes(size_bytes), ")"),
                     .got = errno_text(errno),
                     .hint = "A limit on address space (ulimit -v) may be too small."});
  }
  data_ = static_cast<std::byte*>(address);
  if (!writable) ReadOnlyMemory::add(data_, size_bytes_);
}

SharedMemoryMapping SharedMemoryMapping::anonymous(size_t size_bytes) {
  void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw DataError(
        {.what = concat("memory for a data set of ", format_bytes(size_bytes)),
         .got = errno_text(errno),
         .hint = "Map the files instead (SharedMemoryDataset::map), or raise the limit (ulimit -v)."});
  }
  SharedMemoryMapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.size_bytes_ = size_bytes;
  mapping.writable_ = true;
  return mapping;
}

SharedMemoryMapping::SharedMemoryMapping(SharedMemoryMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      writable_(other.writable_) {}

SharedMemoryMapping& SharedMemoryMapping::operator=(SharedMemoryMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(writable_, other.writable_);
  return *this;
}

SharedMemoryMapping::~SharedMemoryMapping() {
  if (data_ == nullptr) return;
  if (!writable_) ReadOnlyMemory::remove(data_);
  ::munmap(data_, size_bytes_);
}

void SharedMemoryMapping::make_read_only() {
  if (data_ == nullptr || !writable_ || ::mprotect(data_, size_bytes_, PROT_READ) != 0) return;
  writable_ = false;
  ReadOnlyMemory::add(data_, size_bytes_);
}

SharedMemorySegment::SharedMemorySegment(const std::string& job_id, size_t size_bytes,
                                         const SharedMemoryOptions& options)
    : job_id_(job_id), size_bytes_(size_bytes) {
  std::string problem;
  if (size_bytes == 0)
    throw DataError({.what = "a shared-memory segment of 0 bytes", .hint = "The data set is empty."});
  if (open_in(options.directory, &problem)) return;
  if (!options.fallback_directory.empty()) {
    std::string second;
    in_fallback_ = open_in(options.fallback_directory, &second);
    if (in_fallback_) return;
    problem += "; " + second;
  }
  throw DataError({.what = concat("no room for shared data: ", problem),
                   .hint = concat("Make the folder larger (mount -o remount,size=... ", options.directory,
                                  "; docker run --shm-size=...), or name a folder on disk as fall-back.")});
}

bool SharedMemorySegment::open_in(const std::string& directory, std::string* problem) {
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  std::string path;
  if (!fd && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    // A file system without unnamed files: the name is there from the start, and the sweep covers a killed
    // builder.
    path = concat(directory, "/", shared_memory_prefix(job_id_), random_hex());
    fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  if (!fd) {
    *problem = concat(directory, ": ", errno_text(errno));
    return false;
  }
  ::flock(fd.get(), LOCK_SH | LOCK_NB);
  const int error = reserve(fd.get(), size_bytes_);
  if (error != 0) {
    if (!path.empty()) ::unlink(path.c_str());
    fd.reset();  // gives the pages back that were reserved, so that the figure below is right
    if (error == EFBIG) {
      *problem =
          concat(directory, " needs ", size_bytes_, " bytes (", format_bytes(size_bytes_),
                 "), but this process may write files of ", file_size_limit(), " only: raise ulimit -f");
    } else if (is_tmpfs_full(error)) {
      *problem = concat(directory, " needs ", size_bytes_, " bytes (", format_bytes(size_bytes_), "), has ",
                        free_bytes(directory), " bytes free (", format_bytes(free_bytes(directory)), ")");
    } else {
      *problem = concat(directory, ": ", errno_text(error));
    }
    return false;
  }
  directory_ = directory;
  path_ = path;
  fd_ = std::move(fd);
  return true;
}

SharedMemorySegment::~SharedMemorySegment() {
  withdraw();
}

SharedMemoryMapping SharedMemorySegment::map_writable() const {
  return {fd_.get(), size_bytes_, true, "a shared-memory segment in " + directory_};
}

std::string SharedMemorySegment::publish() {
  if (!path_.empty()) return path_;
  const std::string source = concat("/proc/self/fd/", fd_.get());
  for (int attempt = 0; attempt < 8; ++attempt) {
    const std::string path = concat(directory_, "/", shared_memory_prefix(job_id_), random_hex());
    if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      path_ = path;
      return path_;
    }
    if (errno != EEXIST) break;
  }
  throw DataError(
      {.what = concat("naming a shared-memory segment in ", directory_), .got = errno_text(errno)});
}

void SharedMemorySegment::withdraw() noexcept {
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  path_.clear();
}

SharedMemoryMapping attach_shared_memory(const std::string& path, size_t size_bytes) {
  const UniqueFd fd = open_segment(path, size_bytes, O_RDONLY);
  return {fd.get(), size_bytes, false, path};
}

SharedMemoryMapping attach_shared_memory_writable(const std::string& path, size_t size_bytes) {
  const UniqueFd fd = open_segment(path, size_bytes, O_RDWR);
  return {fd.get(), size_bytes, true, path};
}

int sweep_shared_memory(const std::string& job_id, const std::string& directory) noexcept {
  try {
    const std::string prefix = user_prefix();
    const std::string job_prefix = shared_memory_prefix(job_id);
    DIR* listing = ::opendir(directory.c_str());
    if (listing == nullptr) return 0;
    int removed = 0;
    while (const dirent* entry = ::readdir(listing)) {
      const std::string name = entry->d_name;
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      const std::string path = concat(directory, "/", name);
      // The random part is 16 digits; what lies before it is the job's id, whole.
      const bool own_job = !job_id.empty() && name.size() == job_prefix.size() + 16 &&
                           name.compare(0, job_prefix.size(), job_prefix) == 0;
      const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (!fd) continue;
      if (!own_job && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;  // its publisher lives
      if (::unlink(path.c_str()) == 0) ++removed;
    }
    ::closedir(listing);
    return removed;
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace accelerate
