#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace accelerate {

/// A point in time after which a wait gives up. Every wait of the library takes one. Uses the monotonic
/// clock.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds duration) {
    return Deadline(Clock::now() + duration, duration);
  }

  bool expired() const { return Clock::now() >= end_; }

  /// Time left, never negative.
  std::chrono::milliseconds remaining() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }

  /// Time left as poll(2) wants it, rounded up so that a wait never ends early.
  int poll_timeout_ms() const {
    const int64_t left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
  }

  /// The whole duration that was asked for, for messages.
  std::chrono::milliseconds duration() const { return duration_; }

 private:
  Deadline(Clock::time_point end, std::chrono::milliseconds duration) : end_(end), duration_(duration) {}

  Clock::time_point end_;
  std::chrono::milliseconds duration_;
};

}  // namespace accelerate
