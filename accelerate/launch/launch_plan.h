#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/core/child_process.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate {

/// Output streams of a rank, for masks.
inline constexpr int kStdoutStream = 1;
inline constexpr int kStderrStream = 2;

/// What happens to what the ranks print.
struct OutputOptions {
  /// "[rank R] " before every line when the job has more than one rank. A single one without log files keeps
  /// our own standard output and error, terminal included.
  bool prefix = true;
  /// One file a rank, rank_R.log, with its standard output and error; made anew by every run, and those of an
  /// earlier one with more ranks are removed. Empty: no files.
  std::string log_directory;
  /// With log files: streams that are written to them.
  int logged_streams = kStdoutStream | kStderrStream;
  /// With log files: streams that are shown here. Without, both are.
  int shown_streams = 0;
  /// No lines of our own unless something fails.
  bool quiet = false;
};

/// How the launchers of several machines find one another and act as one. The launcher of the machine that
/// has `address` coordinates; it is machine 0, and the job can't go on without it.
struct MachinesPlan {
  int min_machines = 2;  ///< fewer than max_machines: the job starts and goes on with that many
  int max_machines = 2;
  /// This machine's number, from 0. Nothing: given in order of arrival.
  std::optional<int> machine_rank;
  std::string address;  ///< of machine 0, as all machines can reach it
  int port = 29500;     ///< of the coordinator; the stores of ranks have ports of their own
  /// Equal on all machines of a job; launchers with another are refused.
  std::string token;
  /// How long machines wait for one another, at the start and before each restart.
  std::chrono::milliseconds connect_timeout{300000};
  /// How long a job that could start with min_machines waits for more.
  std::chrono::milliseconds last_call{3000};
  /// A machine that was silent for so long is lost. Machine 0's value holds for all. Five signs of life are
  /// sent in that time.
  std::chrono::milliseconds heartbeat_timeout{5000};
};

/// A program that starts the ranks in our stead, such as mpirun. run() starts it alone, and looks after it as
/// it would after a rank.
struct StarterPlan {
  std::string name;  ///< in messages: "mpirun"
  /// What it prints for its ranks begins with "[1,RANK]<stdout>:", as Open MPI's --tag-output has it.
  bool tags_output = true;
  /// Time that it needs to stop its ranks by itself, once asked; added to the grace period.
  std::chrono::milliseconds stop_time{4000};
};

/// Ranks to start on this machine and how to look after them.
struct LaunchPlan {
  std::string program;  ///< path to execute; PATH is not searched
  std::vector<std::string> arguments;
  int num_processes = 1;  ///< on this machine; with `machines`, as many on each
  /// `program` is one that starts the ranks, `num_processes` of them on all machines together. It gets no
  /// variables of a rank, but ACCELERATE_MPIRUN_JOB, by which its ranks are found where they outlive it.
  std::optional<StarterPlan> starter;
  /// The other machines of the job. Nothing: this one is all.
  std::optional<MachinesPlan> machines;
  /// What the ranks' environment starts from, usually EnvVars::from_process().
  EnvVars base_environment;
  /// Set in every rank, over the base.
  std::map<std::string, std::string> environment;
  /// Set in one rank of this machine, over all else but what run() itself sets; may be shorter than
  /// num_processes.
  std::vector<std::map<std::string, std::string>> rank_environment;
  std::string working_directory;  ///< empty: ours
  /// CPUs that each rank of this machine is pinned to; empty: all run where we may. OMP_NUM_THREADS is then
  /// their number where nobody says otherwise.
  std::vector<std::vector<int>> rank_cpus;

  /// Where rank 0's store listens. Nothing: 29500, or any free port if that is taken (said in one line). 0:
  /// any free port. Another number must be free, or run() throws. Not used with `machines`.
  std::optional<int> main_process_port;
  /// OMP_NUM_THREADS of each rank. Nothing: what the base environment says, else cores / num_processes.
  std::optional<int> num_cpu_threads;

  /// From asking the ranks to stop to killing them.
  std::chrono::milliseconds grace_period{5000};
  /// How many times all ranks are started afresh after a failure.
  int max_restarts = 0;
  /// Wait before the first restart; doubled each time, 30 s at most.
  std::chrono::milliseconds restart_delay{50};
  /// Take over SIGINT, SIGTERM, SIGHUP and SIGQUIT of this process while the ranks run. Off where the program
  /// that calls run() has its own ideas.
  bool handle_signals = true;

  OutputOptions output;
  std::string job_id;  ///< empty: a random one
};

/// The rank that a failed job is blamed on.
struct RankFailure {
  int rank = 0;        ///< in the whole job
  int local_rank = 0;  ///< on its machine
  pid_t pid = 0;
  WaitStatus status;
};

struct LaunchResult {
  /// 0 if every rank gave 0; else the first failing rank's exit code or 128 + its signal; 128 + N when signal
  /// N stopped the job.
  int exit_code = 0;
  std::optional<RankFailure> failure;  ///< only of a rank of this machine
  std::optional<int> stopped_by_signal;
  int restarts = 0;
};

/// Starts the ranks, watches them and returns when none is left: no process of theirs, no shared-memory
/// segment of the job, no listening port. Failures are printed on standard error; success is silent. One
/// run() at a time in a process may handle signals.
/// With several machines, each runs its own launcher, and all of them end together and with the same code; a
/// machine that is lost gives ExitCode::kCommError on the others.
/// @throws LaunchError when the ranks can't be started: port taken, program can't be executed, log file can't
/// be made.
LaunchResult run(const LaunchPlan& plan);

/// The environment that run() would give the rank number `local_rank` of this machine, sorted by name, for
/// `--dry-run`. Job id and listening descriptor are left out, since they are made at the start; `port` 0
/// stands for "any free one".
std::map<std::string, std::string> preview_rank_environment(const LaunchPlan& plan, int local_rank, int port);

/// Threads of each rank by the rule of LaunchPlan::num_cpu_threads.
int threads_per_rank(const LaunchPlan& plan);

}  // namespace accelerate
