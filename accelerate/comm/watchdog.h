#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "accelerate/comm/operation_log.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/log.h"

namespace accelerate::detail {

// Note [The watchdog]
// Each group has a thread that looks at the group's OperationLog from time to time and writes into the store
// what it sees. Where an operation takes long, it reads what the other ranks wrote, and says which of them
// have not begun it, what they do instead, and who no longer writes at all. When an operation fails, the same
// knowledge goes into the error. All talk with the store for these purposes is this thread's, so that a store
// which no longer answers (the rank that serves it may be the one that is stopped) holds nobody up.
//
// Gloo ends the process, from a thread of its own, when data of another size than expected arrive: the ranks
// are in different collectives, or have other shapes. That can't be undone, but it is told what each rank was
// in before the process ends.

struct WatchdogOptions {
  int rank = 0;
  int size = 1;
  std::string backend_name;
  /// Operations that take longer are told about, again after twice that time, and so on. 0: none is.
  std::chrono::milliseconds notice{};
  /// How often state is written and looked at.
  std::chrono::milliseconds interval{};
};

class Watchdog {
 public:
  /// Prints a line.
  using Tell = std::function<void(LogLevel level, const std::string& line)>;

  /// `tell` is called from the watchdog's thread.
  Watchdog(Store store, std::shared_ptr<OperationLog> log, const WatchdogOptions& options, Tell tell);
  /// Writes this rank's farewell and ends the thread; waits a moment for a store that does not answer.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Tells the others that this rank failed in `operation`, and returns what is known of them. Never throws.
  std::string report_failure(const std::string& operation) noexcept;

 private:
  struct Shared;
  class Registry;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
};

}  // namespace accelerate::detail
