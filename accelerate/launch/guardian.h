#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// A tiny process that outlives the launcher when that is killed: it then kills the ranks' process groups, so
/// that what the ranks started dies as well, and removes the job's shared memory. It sits in a session of its
/// own and holds nothing but its control pipe. Ends at once and silently with the Guardian object.
class Guardian {
 public:
  /// Forks it. Must come before any rank is started. `notice`: time that the groups get to end by themselves,
  /// as a starter does, which has the launcher's death as its signal.
  /// @throws LaunchError when the process can't be made.
  Guardian(int max_groups, const std::string& job_id, std::chrono::milliseconds notice = {});
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// Adds a process group to those that are killed.
  void watch(pid_t group);
  /// Takes one out, since it is empty and its number may be given to others.
  void forget(pid_t group);

 private:
  void send(pid_t message);

  pid_t pid_ = -1;
  UniqueFd control_;
};

}  // namespace accelerate::detail
