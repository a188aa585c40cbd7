#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/core/unique_fd.h"
#include "accelerate/launch/launch_plan.h"

namespace accelerate::detail {

enum class RankStream : int { kStdout = 0, kStderr = 1 };

/// One of our own output descriptors. Knows which writer left a line open, so that another one's text starts
/// on a line of its own.
class Destination {
 public:
  explicit Destination(int fd) : fd_(fd) {}

  /// Appends `text` and its end ('\n', '\r', or 0 for a line still open) as a piece by `writer`.
  void add(int writer, std::string_view prefix, std::string_view text, char end);
  /// Ends a line left open by anybody.
  void close_line();
  /// Writes what was added. A destination that can't be written is silently given up: the training goes on.
  void flush();
  /// Lines ended so far.
  int64_t lines() const { return lines_; }

 private:
  static constexpr int kNobody = -1;

  int fd_;
  int open_writer_ = kNobody;
  bool at_line_start_ = false;  ///< of an open line: its last piece ended in '\r'
  bool broken_ = false;
  int64_t lines_ = 0;
  std::string pending_;
};

/// Collects the output of all ranks and prints it in whole lines.
class Console {
 public:
  using Clock = std::chrono::steady_clock;

  /// `num_processes` of this machine, of `world_size` in all. Ranks are counted from 0 in all methods; what
  /// users see is counted from what renumber() says.
  /// `captures`: also where it would not be needed.
  Console(const OutputOptions& options, int num_processes, int world_size, bool captures = false);
  ~Console();

  /// The first rank of this machine, which decides prefixes and names of log files. Makes the log files anew
  /// where it is another than before. To be called before any rank is started.
  /// @throws LaunchError when a log file can't be made.
  void renumber(int first_rank);

  /// True if the ranks' output has to come to us; otherwise they write to our own descriptors.
  bool captures() const { return captures_; }

  /// True if a rank's standard output and error end up in the same place, so that one pipe keeps their order.
  /// That pipe is fed as kStdout.
  bool merges() const { return captures_ && merges_; }

  /// Output of a rank as it was read.
  void feed(int rank, RankStream stream, std::string_view bytes);
  /// Prints the unfinished last line of a rank that has ended.
  void end_of_stream(int rank, RankStream stream);
  /// Prints unfinished lines that nothing was added to for a while.
  void flush_silent(Clock::time_point now);
  /// When flush_silent() has something to do next.
  std::optional<Clock::time_point> next_flush() const;

  /// Text of a program around the ranks, as it is; always shown.
  void relay(RankStream stream, std::string_view text);

  /// A line of our own, "accel: TEXT", on standard error.
  void say(std::string_view text);
  /// As say(), unless output is quiet.
  void inform(std::string_view text);

  /// The last lines a rank wrote to standard error; empty when they were among the last few lines printed, so
  /// that repeating them would only hide the message that follows.
  std::vector<std::string> unseen_errors(int rank) const;
  /// The rank's log file, or empty.
  std::string log_path(int rank) const;

 private:
  struct Line {
    std::string text;
    int64_t printed_at;  ///< Destination::lines() then
  };
  struct Stream {
    std::string partial;  ///< text of an unfinished line that has not been printed
    std::string line;     ///< all of the unfinished line, for the tail
    Clock::time_point changed;
  };
  struct Rank {
    Stream streams[2];
    std::deque<Line> tail;
    UniqueFd log;
    std::string prefix;
  };

  /// True if a stream of ranks is shown here.
  bool prints(RankStream stream) const;
  Destination& destination(RankStream stream) {
    return stream == RankStream::kStdout || !stderr_ ? stdout_ : *stderr_;
  }
  const Destination& stderr_destination() const { return stderr_ ? *stderr_ : stdout_; }
  void print_piece(int rank, RankStream stream, std::string_view text, char end);
  void remember(Rank& rank, RankStream stream, std::string_view text, char end);
  void open_logs();
  void write_log(Rank& rank, RankStream stream, std::string_view bytes);

  OutputOptions options_;
  bool captures_;
  bool several_;  ///< ranks in the whole job
  std::optional<int> first_rank_;
  bool merges_;
  bool log_failed_ = false;
  Destination stdout_;
  std::unique_ptr<Destination> stderr_;  ///< none where both are the same file or terminal
  std::vector<Rank> ranks_;
};

}  // namespace accelerate::detail
