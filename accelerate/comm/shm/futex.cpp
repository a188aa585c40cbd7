#include "accelerate/comm/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace accelerate::shm {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  // Without FUTEX_PRIVATE_FLAG: the word is found by its page, so that other processes see it.
  return ::syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation, value, timeout, nullptr,
                   0);
}

}  // namespace

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds timeout) noexcept {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = whole.count(), .tv_nsec = (timeout - whole).count()};
  return futex(word, FUTEX_WAIT, seen, &limit) == 0 || errno != ETIMEDOUT;
}

void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
  futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace accelerate::shm
