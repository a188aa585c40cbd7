#include "accelerate/core/preemption.h"

#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <mutex>

namespace accelerate {
namespace {

std::atomic<bool> flag = false;
std::atomic<int64_t> first_s = 0;  // when the flag was raised
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "set by a signal handler");

// A scheduler's signal often comes twice, to the process itself and by way of its launcher; only one that
// comes later is a wish for an end at once.
constexpr int64_t kSameWishSeconds = 5;

void on_signal(int number) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (!flag.exchange(true)) {
    first_s = now.tv_sec;
  } else if (now.tv_sec - first_s > kSameWishSeconds) {
    ::signal(number, SIG_DFL);
    ::raise(number);
  }
}

}  // namespace

void PreemptionSignal::watch() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction before {};
    ::sigaction(SIGTERM, nullptr, &before);
    const bool is_own = (before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL;
    if (is_own) return;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;  // calls that wait go on
    ::sigaction(SIGTERM, &action, nullptr);
  });
}

bool PreemptionSignal::raised() {
  return flag;
}

void PreemptionSignal::set(bool raised) {
  flag = raised;
}

}  // namespace accelerate
