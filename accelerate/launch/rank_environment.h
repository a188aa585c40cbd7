#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/launch/launch_plan.h"

namespace accelerate::detail {

/// What is known only once the job starts.
struct JobFacts {
  std::string job_id;
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  std::optional<int> listen_fd = std::nullopt;  ///< goes to the rank that serves the store
};

/// Rank that inherits the listening socket.
inline constexpr int kStoreRank = 0;

/// "NAME=value" for everything rank `rank` gets. `threads` as threads_per_rank() says.
std::vector<std::string> rank_environment(const LaunchPlan& plan, const JobFacts& job, int rank, int threads);

}  // namespace accelerate::detail
