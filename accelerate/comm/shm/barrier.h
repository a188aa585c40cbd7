#pragma once

#include <chrono>

#include "accelerate/comm/shm/peers.h"

namespace accelerate::shm {

// Note [Waiting]
// A rank spins for a few microseconds, and only where every rank has a core, then sleeps on a futex in slices
// of kSlice. Spinning that came to nothing is halved and soon left out, but tried again now and then: where
// other programs hold the cores, two ranks may share one, and the one that spins keeps the other from coming.
// After each slice in which nothing happened it asks whether the processes of the ranks that have not come
// still run: a killed rank is an error within two slices, a stopped one at the deadline.
inline constexpr std::chrono::milliseconds kSlice{25};
inline constexpr std::chrono::nanoseconds kLongestSpin{10000};
inline constexpr std::chrono::nanoseconds kShortestSpin{1000};
inline constexpr int kSpinAgainAfter = 64;

/// Meets all ranks of a group. Each rank has one object over the same words. Not thread-safe.
class Barrier {
 public:
  Barrier(Header& header, Peers& peers, bool spin) : header_(header), peers_(peers), spin_(spin) {}

  /// Barriers that this rank has passed; the next is passed() + 1.
  uint32_t passed() const { return passed_; }

  /// Returns once all ranks are here; what they wrote before is then visible.
  /// @throws PeerError naming the ranks that did not come and why, when one is gone or `timeout` (of this
  /// wait alone) passed. `operation` goes into the message.
  void wait(const char* operation, std::chrono::milliseconds timeout);

 private:
  bool spin_until(uint32_t target);
  void sleep_until(uint32_t target, const char* operation, std::chrono::milliseconds timeout);
  bool all_arrived(uint32_t target) const;
  void complete(uint32_t target);
  [[noreturn]] void fail(uint32_t target, const char* operation, const std::string& reason);

  Header& header_;
  Peers& peers_;
  bool spin_;
  std::chrono::nanoseconds spin_for_ = kLongestSpin;
  int not_spun_ = 0;  // barriers since spinning was given up
  uint32_t passed_ = 0;
};

}  // namespace accelerate::shm
