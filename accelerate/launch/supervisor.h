#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/core/child_process.h"
#include "accelerate/launch/console.h"
#include "accelerate/launch/guardian.h"
#include "accelerate/launch/launch_plan.h"
#include "accelerate/launch/rank_environment.h"
#include "accelerate/launch/signal_pipe.h"
#include "accelerate/launch/tagged_output.h"

namespace accelerate::detail {

/// Why the ranks of this machine have to stop although nothing happened to them.
struct PeerStop {
  std::string why;
  int signal = 0;  ///< that another machine's launcher got; 0: something failed there
};

/// The rest of the job, as the supervisor of this machine's ranks sees it.
class PeerMachines {
 public:
  virtual ~PeerMachines() = default;
  /// Readable when next_stop() should be asked.
  virtual int fd() const = 0;
  virtual std::optional<PeerStop> next_stop() = 0;
  virtual void tell_failure(const RankFailure& failure) = 0;
  virtual void tell_signal(int number) = 0;
};

/// Looks after the ranks of one attempt, from the first fork until none of their processes is left. One event
/// loop waits on everything: ends of ranks (pidfd), signals, output, and the next deadline.
class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;

  struct Outcome {
    std::optional<RankFailure> failure;
    std::optional<int> named_by_starter;  ///< the rank that the starter blames
    std::vector<int> left_before;         ///< ranks that had ended with 0 when the failing one failed
    std::vector<int> stopped;             ///< ranks that were still running when the rest was stopped
    bool stopped_by_peer = false;         ///< another machine was the reason
    std::optional<int> stopped_by_signal;
    bool saved_first = false;     ///< and every rank ended with ExitCode::kPreempted
    bool interrupted = false;     ///< a signal came after the failure, while the rest was being stopped
    std::vector<int> unkillable;  ///< ranks that even SIGKILL did not end
  };

  Supervisor(const LaunchPlan& plan, Console& console, Guardian& guardian, SignalPipe* signals,
             PeerMachines* peers = nullptr);

  /// @throws LaunchError when the program can't be executed; the ranks started until then are killed.
  void start(const JobFacts& job, int threads);
  /// Starts plan.starter instead of ranks.
  void start_starter(const std::string& job_id);
  Outcome watch();

 private:
  struct Rank {
    ChildProcess process;
    std::optional<WaitStatus> status;
    bool group_gone = false;
  };
  /// One step of stopping: the signal that is sent to all that is left, and when.
  struct StopStep {
    Clock::time_point when;
    int signal;
  };

  void wait_for_events();
  int poll_timeout_ms() const;
  void handle_signal(int number);
  void spawn_one(SpawnOptions options);
  void feed(int rank, RankStream stream, std::string_view bytes);
  void end_of_stream(int rank, RankStream stream);
  std::string name(const std::vector<int>& ranks) const;
  void read_output(int rank, RankStream stream);
  void finish_output(int rank);
  bool reap();
  void judge_ends(const std::vector<int>& ended);
  void blame(int rank);
  void run_timers();
  void begin_stop(std::deque<StopStep> steps);
  void stop_by_signal(int number);
  void stop_for_peer(const PeerStop& stop);
  /// From asking what runs to stop to killing it.
  std::chrono::milliseconds grace() const;
  std::deque<StopStep> stop_steps(int signal_number) const;
  bool waits_for_culprit() const;
  void send_to_all(int signal_number);
  void check_groups();
  bool all_gone() const;
  bool all_reaped() const;
  std::vector<int> still_running() const;

  const LaunchPlan& plan_;
  Console& console_;
  Guardian& guardian_;
  SignalPipe* signals_;  ///< none: signals are the caller's business
  PeerMachines* peers_;  ///< none: this machine is all
  int first_rank_ = 0;   ///< of this machine; `ranks_` counts from 0, and what is told to others from here

  std::vector<Rank> ranks_;           ///< or the starter alone
  std::vector<TaggedOutput> tagged_;  ///< of the starter: standard output and error
  std::string starter_text_;
  std::vector<pollfd> polled_;
  std::vector<char> buffer_;
  std::deque<StopStep> stop_steps_;
  bool stopping_ = false;
  std::optional<Clock::time_point> give_up_;  ///< after SIGKILL
  /// A rank that ended since it lost its peers, and until when the one that caused it may still show up.
  std::optional<int> secondary_;
  Clock::time_point secondary_until_;
  Outcome outcome_;
};

}  // namespace accelerate::detail
