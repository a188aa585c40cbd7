#include "accelerate/core/read_only_memory.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

namespace accelerate {
namespace {

struct Range {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
};

// A table without locks: the signal handler reads it. A fault in memory that found no room in it is not
// explained.
constexpr size_t kMostRanges = 1024;
std::array<Range, kMostRanges> ranges;
// All ranges, by their beginning.
struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> ranges;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // tensors may outlive static objects
  return instance;
}

struct sigaction previous_action;
thread_local volatile sig_atomic_t in_handler = 0;

bool in_table(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (const Range& range : ranges) {
    if (address >= range.begin && address < range.end) return true;
  }
  return false;
}

void explain_fault(int number, siginfo_t* info, void* context) {
  if (in_handler != 0) {
    // A handler that was installed later has called us as its predecessor, after we called it.
    ::signal(number, SIG_DFL);
    return;
  }
  in_handler = 1;
  if (in_table(info->si_addr)) {
    static constexpr char kText[] =
        "accelerate: error: a write to the memory of a shared data set, which is read-only: a batch of "
        "samples "
        "that lie side by side is a view of it. Work on a copy (tensor.clone()), or set "
        "DataLoaderOptions{.copy_batches = true}.\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(number, info, context);
    in_handler = 0;
    return;
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(number);
    in_handler = 0;
    return;
  }
  // On return the write is tried again, and the fault ends the process.
  ::signal(number, SIG_DFL);
}

// Again where somebody has put a handler of his own in ours' place; that one is then called after ours.
void install_handler() {
  struct sigaction current;
  if (::sigaction(SIGSEGV, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) != 0 &&
      current.sa_sigaction == &explain_fault) {
    return;
  }
  struct sigaction action;
  std::memset(&action, 0, sizeof action);
  action.sa_sigaction = &explain_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace

void ReadOnlyMemory::add(const void* data, size_t size_bytes) noexcept {
  if (size_bytes == 0) return;
  const std::lock_guard lock(registry().mutex);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  registry().ranges[begin] = begin + size_bytes;
  install_handler();
  for (Range& range : ranges) {
    if (range.end != 0) continue;
    range.begin = reinterpret_cast<uintptr_t>(data);
    range.end = reinterpret_cast<uintptr_t>(data) + size_bytes;
    return;
  }
}

void ReadOnlyMemory::remove(const void* data) noexcept {
  const std::lock_guard lock(registry().mutex);
  registry().ranges.erase(reinterpret_cast<uintptr_t>(data));
  for (Range& range : ranges) {
    if (range.end == 0 || range.begin != reinterpret_cast<uintptr_t>(data)) continue;
    range.end = 0;
    range.begin = 0;
  }
}

bool ReadOnlyMemory::contains(const void* data) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(registry().mutex);
  const auto next = registry().ranges.upper_bound(address);
  return next != registry().ranges.begin() && address < std::prev(next)->second;
}

}  // namespace accelerate
