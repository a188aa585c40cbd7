#include "accelerate/comm/shm/barrier.h"

#include "accelerate/comm/shm/futex.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/strings.h"

namespace accelerate::shm {

void Barrier::wait(const char* operation, std::chrono::milliseconds timeout) {
  const uint32_t target = passed_ + 1;
  peers_.own().arrived.store(target, std::memory_order_release);
  const auto size = static_cast<uint32_t>(peers_.size());
  if (header_.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1 == target * size) {
    complete(target);
  } else if (!spin_until(target)) {
    sleep_until(target, operation, timeout);
  }
  passed_ = target;
}

void Barrier::complete(uint32_t target) {
  // Sequentially consistent with the sleepers' count: either we see the sleeper, or it sees the new epoch.
  header_.epoch.store(target, std::memory_order_seq_cst);
  if (header_.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake_all(header_.epoch);
}

bool Barrier::spin_until(uint32_t target) {
  if (reached(header_.epoch.load(std::memory_order_acquire), target)) return true;
  if (!spin_) return false;
  if (spin_for_ < kShortestSpin) {
    if (++not_spun_ < kSpinAgainAfter) return false;
    not_spun_ = 0;
    spin_for_ = kShortestSpin;
  }
  const auto end = std::chrono::steady_clock::now() + spin_for_;
  do {
    for (int i = 0; i < 16; ++i) {
      if (reached(header_.epoch.load(std::memory_order_acquire), target)) {
        spin_for_ = std::min(kLongestSpin, spin_for_ * 2);
        return true;
      }
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  spin_for_ /= 2;
  return false;
}

bool Barrier::all_arrived(uint32_t target) const {
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (!reached(peers_.block(peer).arrived.load(std::memory_order_acquire), target)) return false;
  }
  return true;
}

void Barrier::sleep_until(uint32_t target, const char* operation, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (bool quiet = false;;) {
    const uint32_t seen = header_.epoch.load(std::memory_order_acquire);
    if (reached(seen, target)) return;
    if (quiet && all_arrived(target)) return complete(target);  // the last one was killed before it said so
    std::vector<std::string> gone;
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (reached(peers_.block(peer).arrived.load(std::memory_order_acquire), target)) continue;
      std::string reason = peers_.why_gone(peer, quiet);
      // Read again: a rank that came and then left is no loss.
      if (!reason.empty() && !reached(peers_.block(peer).arrived.load(std::memory_order_acquire), target)) {
        gone.push_back(std::move(reason));
      }
    }
    if (!gone.empty()) fail(target, operation, join(gone, "; "));
    if (deadline.expired()) {
      fail(target, operation, concat("not within ", deadline.duration().count() / 1000.0, " s"));
    }
    header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const auto slice = std::min(kSlice, deadline.remaining() + std::chrono::milliseconds(1));
    quiet = !futex_wait(header_.epoch, seen, slice);
    header_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void Barrier::fail(uint32_t target, const char* operation, const std::string& reason) {
  std::vector<int> missing;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (!reached(peers_.block(peer).arrived.load(std::memory_order_acquire), target)) missing.push_back(peer);
  }
  throw PeerError({.what = concat(operation, " over shared memory: ", format_ranks(missing),
                                  " did not come (", reason, ")"),
                   .hint = "If a rank printed an error of its own, that is the cause.",
                   .rank = peers_.rank()});
}

}  // namespace accelerate::shm
