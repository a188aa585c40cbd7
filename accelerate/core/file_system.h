#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

/// The one seam through which files are written, so that tests can fail or stop at the N-th call. Every
/// method throws CheckpointError naming the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// Creates or truncates. `mode` as for open(2).
  virtual std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode = 0644) = 0;
  /// Atomic replacement within one file system.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Removes a file; one that is not there is no error.
  virtual void remove(const std::string& path) = 0;
  /// Creates the folder and its parents where missing.
  virtual void create_directories(const std::string& path) = 0;
  /// Makes renames and removals in a folder durable (fsync of the folder).
  virtual void sync_directory(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  /// Names (not paths) in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) = 0;
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

/// The folder part of a path, "." if it has none.
std::string parent_directory(const std::string& path);

}  // namespace accelerate
