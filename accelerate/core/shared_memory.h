#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "accelerate/core/unique_fd.h"

namespace accelerate {

// Note [Shared-memory segments]
// A segment is a file in /dev/shm (or, where that is too small, in a folder on disk), mapped by the ranks of
// one machine.
//   Build   It is created without a name (O_TMPFILE) and its pages are reserved with posix_fallocate before
//   anything
//           is written: a full /dev/shm is an error with numbers, never a SIGBUS. A builder that is killed
//           leaves nothing, since there is no name yet.
//   Publish Once filled, it gets the name accelerate-<uid>-<job>-<random> (mode 0600; linkat fails if the
//   name
//           exists), the other ranks open it read-only, and the name is removed as soon as all have: from
//           then on it lives exactly as long as its mappings.
//   Sweep   Whoever publishes a name holds a lock (flock) on the file. A process that was killed between
//   publish and
//           removal has lost its lock, so that any later start may remove the name. Locks, unlike process
//           ids, hold across containers that share /dev/shm.

/// A mapping of a shared segment. Movable; unmaps itself. The memory stays valid for as long as this lives,
/// also after the name is gone.
class SharedMemoryMapping {
 public:
  SharedMemoryMapping() = default;
  SharedMemoryMapping(SharedMemoryMapping&& other) noexcept;
  SharedMemoryMapping& operator=(SharedMemoryMapping&& other) noexcept;
  SharedMemoryMapping(const SharedMemoryMapping&) = delete;
  SharedMemoryMapping& operator=(const SharedMemoryMapping&) = delete;
  ~SharedMemoryMapping();

  /// Memory of this process alone, writable and zero; not in any folder.
  /// @throws DataError when there is not that much.
  static SharedMemoryMapping anonymous(size_t size_bytes);

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool writable() const { return writable_; }
  /// From now on a write through this mapping is a segmentation fault, explained by ReadOnlyMemory.
  void make_read_only();

 private:
  friend class SharedMemorySegment;
  friend SharedMemoryMapping attach_shared_memory(const std::string& path, size_t size_bytes);
  friend SharedMemoryMapping attach_shared_memory_writable(const std::string& path, size_t size_bytes);
  SharedMemoryMapping(int fd, size_t size_bytes, bool writable, const std::string& what);

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool writable_ = false;
};

/// Where segments live.
struct SharedMemoryOptions {
  /// A folder on tmpfs.
  std::string directory = "/dev/shm";
  /// A folder on disk to take when `directory` has too little room; empty: that is an error.
  std::string fallback_directory = {};
};

/// The builder's side of a segment. See Note [Shared-memory segments].
class SharedMemorySegment {
 public:
  /// Reserves `size_bytes` (> 0) for the job `job_id` (letters, digits, '-', '_', '.').
  /// @throws DataError naming the folder with the bytes needed and free when there is too little room, or the
  /// folder can't be written.
  SharedMemorySegment(const std::string& job_id, size_t size_bytes, const SharedMemoryOptions& options = {});
  /// Removes the name if it was published and not withdrawn.
  ~SharedMemorySegment();
  SharedMemorySegment(const SharedMemorySegment&) = delete;
  SharedMemorySegment& operator=(const SharedMemorySegment&) = delete;

  /// The builder's mapping, writable. It may outlive the segment object.
  SharedMemoryMapping map_writable() const;
  /// Gives the segment its name. Returns the path for attach_shared_memory() in the other ranks.
  std::string publish();
  /// Removes the name; mappings stay. A name that is gone already is no error.
  void withdraw() noexcept;
  /// True if the segment lies in the fall-back folder.
  bool in_fallback() const { return in_fallback_; }

 private:
  bool open_in(const std::string& directory, std::string* problem);

  std::string job_id_;
  size_t size_bytes_;
  std::string directory_;
  std::string path_;  // empty until published
  bool in_fallback_ = false;
  UniqueFd fd_;
};

/// Opens a published segment read-only.
/// @throws DataError when it is not there, belongs to another user, or has another size.
SharedMemoryMapping attach_shared_memory(const std::string& path, size_t size_bytes);

/// The same for ranks that write as well.
SharedMemoryMapping attach_shared_memory_writable(const std::string& path, size_t size_bytes);

/// Removes this user's segments whose publisher is dead, and, if `job_id` is not empty, all of that job.
/// Returns how many were removed. Never throws: leftovers are a nuisance, not an error.
int sweep_shared_memory(const std::string& job_id = {}, const std::string& directory = "/dev/shm") noexcept;

}  // namespace accelerate
