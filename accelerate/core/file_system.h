#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accelerate {

/// A file that is being written. Closing without sync() makes no promise about what is on disk.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Returns once the data is on disk (fsync).
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// A file that is being read, from its start on.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  /// Fills `bytes` as far as the file goes and returns how many there were; fewer than asked for at the end
  /// of the file only.
  virtual size_t read(std::span<std::byte> bytes) = 0;
  /// The next read() starts `offset` bytes from the start of the file.
  virtual void seek(uint64_t offset) = 0;
};

/// Holds a lock on a file; the lock goes with it, and with the process however that ends.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class LockMode {
  kShared,     ///< several may hold it
  kExclusive,  ///< one, and no shared one beside it
};

enum class LockState {
  kTaken,
  kHeldByOthers,  ///< by another holder, in this process too
  kMissing,       ///< the file is not there
  kUnsupported,   ///< this file system has no locks
};

struct LockAttempt {
  LockState state = LockState::kMissing;
  std::unique_ptr<FileLock> lock;  ///< not null with kTaken only
};

enum class FileKind { kFile, kDirectory, kOther };

/// What is known of a name in the file system. Of a link: of what it leads to.
struct FileInfo {
  FileKind kind = FileKind::kOther;
  uint64_t size_bytes = 0;  ///< of files
  int64_t modified_s = 0;   ///< last change, in seconds since 1970
  bool is_link = false;     ///< the name itself is a symbolic link
};

/// The one seam through which files are written, so that tests can fail or stop at the N-th call. Every
/// method throws CheckpointError naming the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Creates or truncates. `mode` as for open(2).
  virtual std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode = 0644) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;
  /// Atomic replacement within one file system. A folder replaces an empty folder only.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Swaps what two existing names of one file system stand for, atomically. False, with nothing changed,
  /// where the system or this file system can't (before Linux 3.15, some network file systems).
  virtual bool exchange(const std::string& a, const std::string& b) = 0;
  /// Removes a file; one that is not there is no error.
  virtual void remove(const std::string& path) = 0;
  /// Creates a folder that must not exist yet, in one that does.
  virtual void create_directory(const std::string& path) = 0;
  /// Creates the folder and its parents where missing.
  virtual void create_directories(const std::string& path) = 0;
  /// Removes an empty folder; one that is not there is no error.
  virtual void remove_directory(const std::string& path) = 0;
  /// Returns once what an existing file holds is on disk, whoever wrote it (fsync).
  virtual void sync_file(const std::string& path) = 0;
  /// Makes renames and removals in a folder durable (fsync of the folder).
  virtual void sync_directory(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  /// Nothing where there is nothing, and for a link that leads nowhere no more than that it is one.
  virtual std::optional<FileInfo> info(const std::string& path) = 0;
  /// Names (not paths) in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) = 0;
  /// Bytes that this user may still write to the file system of an existing path; nothing where it does not
  /// say.
  virtual std::optional<uint64_t> free_bytes(const std::string& path) = 0;
  /// Takes a lock on a file without waiting. `create`: makes the file where it is not there. The lock is on
  /// the file that bears the name when this returns, never on one that was removed meanwhile.
  virtual LockAttempt try_lock(const std::string& path, LockMode mode, bool create) = 0;
  /// Whether only processes of this machine can reach `path`, so that a lock that can be taken proves that
  /// no one else holds it. False when in doubt.
  virtual bool is_local(const std::string& path) = 0;
};

/// The operating system's files. Thread-safe; holds no state.
FileSystem& system_files();

/// Writes `path` so that at every moment either the old file or the complete new one is there: temporary file
/// in the same folder, data, fsync, rename, fsync of the folder. The temporary file is removed when `fill` or
/// a step throws.
void write_file_atomically(FileSystem& files, const std::string& path,
                           const std::function<void(WritableFile&)>& fill, unsigned mode = 0644);

/// As above with the whole content at hand.
void write_file_atomically(FileSystem& files, const std::string& path, const std::string& content,
                           unsigned mode = 0644);

/// The whole content of a file.
/// @throws CheckpointError as FileSystem does, and where the file is larger than `most_bytes`.
std::string read_whole_file(FileSystem& files, const std::string& path,
                            uint64_t most_bytes = uint64_t{1} << 30);

/// Removes a file, or a folder with all that is in it; links are removed, not followed. What is gone already,
/// or goes meanwhile because another process does the same, is no error. Nothing is synced.
void remove_tree(FileSystem& files, const std::string& path);

/// Checks that `needed_bytes` fit where `folder` lies (or will lie: the nearest parent that exists counts).
/// @throws CheckpointError with the bytes needed and free.
void require_free_bytes(FileSystem& files, const std::string& folder, uint64_t needed_bytes);

/// The folder part of a path, "." if it has none.
std::string parent_directory(const std::string& path);

/// `name` in `folder`; "a" in "." is "a".
std::string path_in(const std::string& folder, const std::string& name);

}  // namespace accelerate
