#pragma once

#include <span>
#include <string>
#include <vector>

#include "accelerate/comm/shm/layout.h"
#include "accelerate/core/error.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate::shm {

/// A peer is gone, late, or failed itself. Its text names the ranks.
class PeerError : public CommError {
 public:
  using CommError::CommError;
};

/// When this process began, in the kernel's ticks; 0 if that can't be read. With the process id it names a
/// process for good.
uint64_t process_start_ticks(int pid);

/// Tells whether the processes behind the ranks still run. A rank in this process lives for as long as its
/// block does not say otherwise; a process that can't be seen from here (another container) counts as alive,
/// and only deadlines tell that it is gone.
class Peers {
 public:
  Peers(std::vector<RankBlock*> blocks, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  RankBlock& block(int rank) const { return *blocks_[static_cast<size_t>(rank)]; }
  RankBlock& own() const { return block(rank_); }

  /// Opens a handle on every peer's process. All must have said kHere.
  void watch();

  /// Why `peer` will never come, or an empty text. `look_closely` asks the kernel about its process; else
  /// only what peers said themselves is looked at, which costs one load.
  std::string why_gone(int peer, bool look_closely) const;

 private:
  std::vector<RankBlock*> blocks_;
  int rank_;
  std::vector<UniqueFd> processes_;  // pidfds; none for ranks of this process and where unknown
};

}  // namespace accelerate::shm
