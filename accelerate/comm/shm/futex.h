#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace accelerate::shm {

/// Sleeps while `word` is `seen`, at most `timeout`; also wakes for no reason. Works between processes.
/// Returns false if the time ran out.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds timeout) noexcept;

/// Wakes all that sleep on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word) noexcept;

/// Tells the core that this is a spinning wait.
void cpu_relax() noexcept;

/// True if the counter `value`, which may have wrapped, is at `target` or beyond.
inline bool reached(uint32_t value, uint32_t target) {
  return static_cast<int32_t>(value - target) >= 0;
}

}  // namespace accelerate::shm
