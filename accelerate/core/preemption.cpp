#include "accelerate/core/preemption.h"

#include <signal.h>

#include <atomic>
#include <mutex>

namespace accelerate {
namespace {

std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

void on_signal(int) {
  flag = true;
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
    // Calls that wait go on; the second signal meets the default action.
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
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
