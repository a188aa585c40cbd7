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
#include "accelerate/launch/destination.h"
#include "accelerate/launch/launch_plan.h"
#include "accelerate/launch/signal_pipe.h"

namespace accelerate::detail {

enum class RankStream : int { kStdout = 0, kStderr = 1 };

/// Collects the output of all ranks and prints it in whole lines. Nothing here waits for who reads it: what
/// the reader does not take is written when poll() says so, and ranks are left to wait while much of it has
/// come together. Only while the job is being stopped a reader that takes nothing loses output.
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

  /// False while so much waits for the reader of a stream that ranks' pipes are better left unread.
  bool accepts(RankStream stream) const {
    return (stream == RankStream::kStdout || !stderr_ ? stdout_ : *stderr_).has_room();
  }
  /// Adds what poll() has to look at for run_output().
  void add_poll_items(std::vector<pollfd>& items) const;
  /// Writes what readers take now, and does what is due otherwise.
  void run_output(Clock::time_point now);
  /// When run_output() has something to do next although no descriptor says so.
  std::optional<Clock::time_point> next_due() const;
  /// The same as poll() wants it.
  int poll_timeout_ms() const;
  /// From now on the job is being stopped, and a reader that takes nothing is waited for only shortly.
  void begin_stop();
  /// The job runs again.
  void end_stop() { stopping_since_.reset(); }
  /// Waits until all has been read, or `signals` has one, which is then handed back and the rest not waited
  /// for long.
  std::optional<int> drain(SignalPipe* signals);

  /// Output of a rank as it was read.
  void feed(int rank, RankStream stream, std::string_view bytes);
  /// Prints the unfinished last line of a rank that has ended.
  void end_of_stream(int rank, RankStream stream);
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
    UniqueFd log_fd;
    std::unique_ptr<Destination> log;
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
  void remove_old_logs() const;
  void write_log(Rank& rank);
  void flush_silent(Clock::time_point now);
  std::vector<Destination*> destinations();
  void look_after(Destination& destination, Clock::time_point now);

  OutputOptions options_;
  bool captures_;
  int world_size_;
  bool several_;  ///< ranks in the whole job
  std::optional<int> first_rank_;
  std::optional<Clock::time_point> stopping_since_;
  bool reader_gone_told_ = false;
  bool log_failed_ = false;
  Destination stdout_;
  std::unique_ptr<Destination> stderr_;  ///< none where both are the same file or terminal
  std::vector<Rank> ranks_;
};

}  // namespace accelerate::detail
