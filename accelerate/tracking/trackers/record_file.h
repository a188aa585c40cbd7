#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "accelerate/core/log.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {

struct RecordFileOptions {
  /// How long a record may wait in memory. What has been written survives the end of the process, also by
  /// SIGKILL (not the end of the machine: fsync comes only with close()).
  std::chrono::milliseconds flush_interval = std::chrono::seconds(2);
  /// Records beyond this are dropped and counted, so that a disk that hangs does not fill the memory.
  size_t max_pending_bytes = size_t{64} << 20;
  /// The longest that close() and flush() wait for the disk.
  std::chrono::milliseconds close_timeout = std::chrono::seconds(30);
  std::shared_ptr<Logger> logger = nullptr;  ///< told once when writing fails; may be null
};

/// A file that grows by whole records, written by a thread of its own: append() never waits for the disk.
/// Each write leaves complete records behind; when one fails half way, the file is cut back to the last
/// complete record, what was not written is kept, and tried again at the next interval. Thread-safe.
class RecordFile {
 public:
  /// Creates the file and its folder.
  /// @throws ConfigError naming the path when it can't be created; a file that exists already is never
  /// touched.
  explicit RecordFile(std::string path, RecordFileOptions options = {});
  /// As close(), without its error.
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  void append(std::string_view record);
  /// The file's content so far (all that was appended before) is replaced by what `transform`, called on the
  /// file's thread, makes of it. The new file takes the place of the old one in a single step.
  void rewrite(std::function<std::string(std::string content)> transform);
  /// Waits until what has been appended so far is in the file, or a write has failed.
  void flush();
  /// Writes what is left, waits until it is on disk, and ends the thread. Later calls do nothing.
  /// @throws Error with path, reason and the number of records lost, if any were.
  void close();

  const std::string& path() const;

 private:
  struct State;
  void finish_writing();

  std::shared_ptr<State> state_;  // shared with the thread, which a disk that hangs makes outlive this object
  std::thread thread_;
};

}  // namespace accelerate
