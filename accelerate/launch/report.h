#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "accelerate/launch/console.h"
#include "accelerate/launch/launch_plan.h"
#include "accelerate/launch/supervisor.h"

// The wording of what the launcher says about its ranks, in one place.

namespace accelerate::detail {

/// "rank 1 (pid 4711, host H) killed by SIGKILL (maybe out of memory); rank 0 was stopped", with the failing
/// rank's last errors before it where they are out of sight.
std::string describe_failure(const Supervisor::Outcome& outcome, const Console& console);

/// "mpirun (pid 4711, host H) exited with code 3: a rank failed ...". mpirun itself may or may not
/// have said which.
std::string describe_starter_failure(const Supervisor::Outcome& outcome, const std::string& starter);

/// "ranks 0 and 1", or their number where they are many.
std::string name_ranks(const std::vector<int>& ranks);

/// "SIGINT: stopping ranks 0 and 1 (again to kill them at once)"; `who` is "ranks 0 and 1".
std::string describe_stop(int signal_number, const std::string& who, std::chrono::milliseconds grace);

/// "ranks 0 and 1 still ran after 5 s: killed".
std::string describe_late(const std::string& who, std::chrono::milliseconds grace);

/// "rank 1 (pid 4711) killed by SIGKILL (maybe out of memory)".
std::string describe_end(const RankFailure& failure);

/// "machine 1 (host H) was stopped by SIGINT: stopping ranks 0 and 1 within 5 s".
std::string describe_peer_stop(const PeerStop& stop, const std::vector<int>& ranks,
                               std::chrono::milliseconds grace);

/// "0.3 s".
std::string seconds_text(std::chrono::milliseconds duration);

/// "restart 1 of 3 in 0.2 s".
std::string describe_restart(int restart, int max_restarts, std::chrono::milliseconds delay);

}  // namespace accelerate::detail
