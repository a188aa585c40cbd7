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
  int master_port = 0;  ///< for programs that open a store of their own
  int store_port = 0;   ///< where our rank 0 serves it; 0: not known yet
  int restart_count = 0;
  std::optional<int> listen_fd = std::nullopt;  ///< goes to the rank that serves the store, if it is ours
  int machine = 0;
  int machines = 1;
  int first_rank = 0;  ///< of this machine
  int world_size = 1;
};

/// Rank that inherits the listening socket.
inline constexpr int kStoreRank = 0;

/// "NAME=value" for everything that the rank number `local_rank` of this machine gets. `threads` as
/// threads_per_rank() says.
std::vector<std::string> rank_environment(const LaunchPlan& plan, const JobFacts& job, int local_rank,
                                          int threads);

/// True for a variable that every rank is given by the launcher, whatever the plan says.
bool is_set_by_launcher(std::string_view name);

/// "NAME=value" for everything that plan.starter gets.
std::vector<std::string> starter_environment(const LaunchPlan& plan, const std::string& job_id);

}  // namespace accelerate::detail
