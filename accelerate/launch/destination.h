#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// Where output goes: one of our own descriptors, or a log file. Knows which writer left a line open, so that
/// another one's text starts on a line of its own. What the reader does not take at once waits here; no call
/// ever waits for it.
class Destination {
 public:
  using Clock = std::chrono::steady_clock;
  /// The writer of our own lines, which are kept when those of others are dropped.
  static constexpr int kLauncher = 1 << 30;

  /// `fd` stays the caller's.
  explicit Destination(int fd);

  /// Appends `text` and its end ('\n', '\r', or 0 for a line still open) as a piece by `writer`.
  void add(int writer, std::string_view prefix, std::string_view text, char end);
  /// Ends a line left open by anybody.
  void close_line();
  /// Writes what the reader takes now. One that can't be written is given up: the training goes on.
  void flush();

  /// False when enough waits already, and what comes next is better left where it is.
  bool has_room() const;
  /// Something waits for the reader.
  bool waits() const { return !queue_.empty(); }
  /// For poll(); negative when there is nothing to wait for.
  pollfd poll_item() const { return {waits() ? fd() : -1, POLLOUT, 0}; }
  /// When the reader last took something, or had nothing to take.
  Clock::time_point last_progress() const { return last_progress_; }
  /// Drops what waits, but for the rest of a line that was begun, and goes on dropping what others write
  /// until the reader takes something.
  void drop();
  bool drops() const { return drops_; }

  /// Why nothing can be written any more: an errno, or 0.
  int error() const { return error_; }
  /// Lines ended so far.
  int64_t lines() const { return lines_; }

 private:
  static constexpr int kNobody = -1;

  int fd() const { return own_ ? own_.get() : fd_; }
  std::string_view first_piece(std::string_view text) const;
  ssize_t write_some(std::string_view text) const;

  int fd_;
  UniqueFd own_;  ///< the same pipe or terminal, with flags of its own
  bool is_file_ = false;
  bool is_socket_ = false;
  int open_writer_ = kNobody;
  bool at_line_start_ = false;  ///< of an open line: its last piece ended in '\r'
  bool cut_ = false;            ///< the last byte written did not end a line
  bool drops_ = false;
  int error_ = 0;
  int64_t lines_ = 0;
  int64_t dropped_bytes_ = 0;
  std::string queue_;
  Clock::time_point last_progress_;
};

}  // namespace accelerate::detail
