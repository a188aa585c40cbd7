#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "accelerate/launch/launch_plan.h"
#include "accelerate/launch/signal_pipe.h"

// What run() needs around the ranks, whether they are all on this machine or not.

namespace accelerate::detail {

/// A closed terminal or pipe must not kill the launcher before it has stopped its ranks.
class IgnoreSigpipe {
 public:
  IgnoreSigpipe();
  ~IgnoreSigpipe();
  IgnoreSigpipe(const IgnoreSigpipe&) = delete;
  IgnoreSigpipe& operator=(const IgnoreSigpipe&) = delete;

 private:
  struct sigaction before_ {};
};

/// Removes what the job leaves in /dev/shm, however run() ends.
class SharedMemorySweep {
 public:
  explicit SharedMemorySweep(const std::string& job_id);
  ~SharedMemorySweep() { sweep(); }
  SharedMemorySweep(const SharedMemorySweep&) = delete;
  SharedMemorySweep& operator=(const SharedMemorySweep&) = delete;
  void sweep() const;

 private:
  std::string prefix_;
};

/// Kills what carries ACCELERATE_MPIRUN_JOB=`job_id` in its environment: ranks that a starter which was
/// killed has left behind. They are no children of ours.
void kill_processes_of_job(const std::string& job_id);

/// SIGINT, SIGTERM, SIGQUIT, and SIGHUP unless nohup asked for it to be ignored.
std::vector<int> signals_to_handle();

/// Three descriptors a rank and a few of our own.
void raise_descriptor_limit(int num_processes);

/// run() where plan.machines is set.
LaunchResult run_on_machines(const LaunchPlan& plan);

}  // namespace accelerate::detail
