#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "accelerate/core/deadline.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {

/// "SIGKILL"; "signal 40" for one without a name.
std::string signal_name(int signal_number);

/// What to do where a descriptor could not be had for this errno, or empty.
std::string descriptor_hint(int error_number);

/// How a process ended: exactly one of the two is set.
struct WaitStatus {
  std::optional<int> exit_code;
  std::optional<int> signal;
  bool core_dumped = false;

  bool success() const { return exit_code == 0; }
  /// What a shell would report: the exit code, or 128 + signal.
  int shell_code() const { return signal ? 128 + *signal : exit_code.value_or(1); }
  /// "exited with code 3" / "killed by SIGKILL".
  std::string describe() const;
};

/// Where a child's standard output or error goes.
enum class ChildOutput {
  kInherit,  ///< where ours goes
  kPipe,     ///< to us, through ChildProcess::stdout_pipe() and stderr_pipe()
  kMerge,    ///< standard error only: where the child's standard output goes, so that their order is kept
};

struct SpawnOptions {
  std::string program;                   ///< path to execute; PATH is not searched
  std::vector<std::string> arguments;    ///< without the program's name
  std::vector<std::string> environment;  ///< "NAME=value", all that the child gets
  std::string working_directory;         ///< empty: ours
  std::vector<int> inherited_fds;        ///< descriptors that stay open in the child, under the same numbers
  bool inherit_stdin = false;            ///< false: /dev/null
  ChildOutput standard_output = ChildOutput::kInherit;
  ChildOutput standard_error = ChildOutput::kInherit;
  /// The child leads a process group of its own, so that signals reach its children too.
  bool own_process_group = true;
  /// The child is killed when the thread that called spawn() ends, however that happens. 0: it is not.
  int parent_death_signal = 9;
  /// CPUs that the child and its descendants may run on; empty: those that we may.
  std::vector<int> cpus = {};
  /// Signals that the child goes on ignoring if we do (nohup's SIGHUP). All others start with their default
  /// action.
  std::vector<int> keep_ignored;
};

/// A child process. The destructor kills what still runs (its process group) and reaps it within a second.
/// Not thread-safe.
class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(pid_t pid, bool leads_group, UniqueFd stdout_pipe, UniqueFd stderr_pipe);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  /// Becomes readable when the child ends; -1 where the kernel has no pidfd (before Linux 5.3).
  int pidfd() const { return pidfd_.get(); }
  /// Our non-blocking ends of the child's output; empty unless asked for.
  UniqueFd& stdout_pipe() { return stdout_; }
  UniqueFd& stderr_pipe() { return stderr_; }

  /// Reaps the child if it has ended; nothing while it runs. Later calls give the same answer.
  std::optional<WaitStatus> poll();
  /// As poll(), waiting until `deadline`.
  std::optional<WaitStatus> wait(const Deadline& deadline);
  /// Sends a signal to the child alone. False when it has already been reaped.
  bool signal(int signal_number);
  /// Sends a signal to the child's process group, which may outlive the child. False when the group is empty.
  bool signal_group(int signal_number);
  /// True while any process of the child's group lives; zombies do not count.
  bool group_exists();

 private:
  void kill_and_reap() noexcept;

  pid_t pid_ = -1;
  bool leads_group_ = false;
  bool group_gone_ = false;
  std::optional<WaitStatus> status_;
  UniqueFd pidfd_;
  UniqueFd stdout_;
  UniqueFd stderr_;
};

/// Starts a program (fork and exec). Returns after exec has succeeded.
/// @throws LaunchError naming the program and the system's reason when it can't be started.
ChildProcess spawn(const SpawnOptions& options);

}  // namespace accelerate
