#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace accelerate {

/// A whole file mapped into memory. Pages are read when they are used and shared with all processes that map
/// the file; a write changes this process's copy of the page only, never the file.
class FileMapping {
 public:
  /// @throws DataError naming the path and the reason: not there, a folder, no right to read.
  explicit FileMapping(const std::string& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }

  /// Gives the memory of the pages that lie wholly in `bytes`, a part of bytes(), back to the system; they
  /// are read again when they are used. What this process has written to them is lost.
  void release(std::span<const std::byte> bytes) const noexcept;

  /// If `data` lies in a mapped file: from now on a write to any of that mapping is a segmentation fault,
  /// explained by ReadOnlyMemory. Returns whether it does. Thread-safe.
  static bool protect(const void* data);

 private:
  std::string path_;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool read_only_ = false;
};

}  // namespace accelerate
