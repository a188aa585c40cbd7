// The operating system behind the seam.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "accelerate/core/error.h"
#include "accelerate/core/file_size_limit.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {
namespace {

std::optional<uint64_t> free_bytes_of(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

[[noreturn]] void fail(const std::string& action, const std::string& path, int error) {
  std::string got = errno_text(error);
  std::string hint;
  if (error == ENOSPC || error == EDQUOT) {
    if (const auto free = free_bytes_of(parent_directory(path))) {
      got += concat(", with ", *free, " bytes (", format_bytes(*free), ") free there");
    }
    hint = error == EDQUOT ? "Your quota there is used up: free some space or choose another folder."
                           : "Free some space there or choose another folder.";
  }
  if (error == EACCES || error == EPERM || error == EROFS)
    hint = "Check who may write there, or choose another folder.";
  if (error == ENOENT) hint = "Check the path.";
  if (error == EFBIG) hint = "The limit on file sizes is too small; raise it with ulimit -f.";
  if (error == EIO) hint = "The disk or its connection is failing; see dmesg, and choose another folder.";
  throw CheckpointError({.what = concat(action, " ", path), .got = got, .hint = hint});
}

class SystemFile final : public WritableFile {
 public:
  SystemFile(std::string path, unsigned mode)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode)) {
    if (!fd_) fail("creating", path_, errno);
  }

  void write(std::span<const std::byte> bytes) override {
    const FileSizeLimitAsError limit;
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(concat("writing ", bytes.size(), " bytes to"), path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) fail("syncing", path_, errno);
  }

  void close() override {
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0) fail("closing", path_, errno);
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

class SystemReader final : public ReadableFile {
 public:
  explicit SystemReader(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!fd_) fail("opening", path_, errno);
  }

  size_t read(std::span<std::byte> bytes) override {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t got = ::read(fd_.get(), bytes.data() + done, bytes.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("reading", path_, errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

  void seek(uint64_t offset) override {
    if (::lseek(fd_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) fail("seeking in", path_, errno);
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

class SystemLock final : public FileLock {
 public:
  explicit SystemLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  UniqueFd fd_;
};

bool means_unsupported(int error) {
  return error == ENOSYS || error == EINVAL || error == ENOLCK || error == EOPNOTSUPP;
}

// File systems whose files no other machine can reach. Those that are not here, FUSE among them, may be
// shared.
bool is_local_type(long type) {
  switch (static_cast<unsigned long>(type) & 0xFFFFFFFFUL) {
    case 0xEF53:      // ext2, ext3, ext4
    case 0x58465342:  // XFS
    case 0x9123683E:  // Btrfs
    case 0x01021994:  // tmpfs
    case 0x858458F6:  // ramfs
    case 0x794C7630:  // overlayfs
    case 0x2FC12FC1:  // ZFS
    case 0xF2F52010:  // F2FS
    case 0xCA451A4E:  // bcachefs
      return true;
    default:
      return false;
  }
}

class SystemFiles final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode) override {
    return std::make_unique<SystemFile>(path, mode);
  }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return std::make_unique<SystemReader>(path);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail(concat("renaming ", from, " to"), to, errno);
  }

  bool exchange(const std::string& a, const std::string& b) override {
    // By number: glibc has had the function since 2.28 only.
    if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (means_unsupported(errno)) return false;
    fail(concat("exchanging ", a, " and"), b, errno);
  }

  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("removing", path, errno);
  }

  void create_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) != 0) fail("creating the folder", path, errno);
  }

  void create_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("creating the folder", path, error.value());
  }

  void remove_directory(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT) fail("removing the folder", path, errno);
  }

  void sync_file(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) fail("opening", path, errno);
    if (::fsync(fd.get()) != 0) fail("syncing", path, errno);
  }

  void sync_directory(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) fail("opening the folder", path, errno);
    // Some file systems (network ones) can't sync folders and say EINVAL; nothing better is to be had there.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) fail("syncing the folder", path, errno);
  }

  bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }

  std::optional<FileInfo> info(const std::string& path) override {
    struct stat own {};
    if (::lstat(path.c_str(), &own) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
      fail("looking at", path, errno);
    }
    struct stat found = own;
    const bool is_link = S_ISLNK(own.st_mode);
    if (is_link && ::stat(path.c_str(), &found) != 0) return FileInfo{.is_link = true};
    FileInfo out{.size_bytes = static_cast<uint64_t>(found.st_size),
                 .modified_s = found.st_mtim.tv_sec,
                 .is_link = is_link};
    if (S_ISREG(found.st_mode)) out.kind = FileKind::kFile;
    if (S_ISDIR(found.st_mode)) out.kind = FileKind::kDirectory;
    return out;
  }

  std::vector<std::string> list(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) fail("reading the folder", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::optional<uint64_t> free_bytes(const std::string& path) override { return free_bytes_of(path); }

  LockAttempt try_lock(const std::string& path, LockMode mode, bool create) override {
    for (;;) {
      const int flags = O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0);
      UniqueFd fd(::open(path.c_str(), flags, 0644));
      if (!fd && errno == ENOENT && !create) return {LockState::kMissing, nullptr};
      if (!fd) fail("opening the lock file", path, errno);
      const int operation = (mode == LockMode::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
      int result = 0;
      do {
        result = ::flock(fd.get(), operation);
      } while (result != 0 && errno == EINTR);
      if (result != 0 && errno == EWOULDBLOCK) return {LockState::kHeldByOthers, nullptr};
      if (result != 0 && means_unsupported(errno)) return {LockState::kUnsupported, nullptr};
      if (result != 0) fail("locking", path, errno);
      // Between open and flock another process may have removed the file, and even made a new one.
      struct stat held {};
      struct stat named {};
      if (::fstat(fd.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
          held.st_dev == named.st_dev) {
        return {LockState::kTaken, std::make_unique<SystemLock>(std::move(fd))};
      }
    }
  }

  bool is_local(const std::string& path) override {
    struct statfs info {};
    return ::statfs(path.c_str(), &info) == 0 && is_local_type(static_cast<long>(info.f_type));
  }
};

}  // namespace

FileSystem& system_files() {
  static SystemFiles files;
  return files;
}

}  // namespace accelerate
