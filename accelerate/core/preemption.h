#pragma once

#include "accelerate/core/error.h"

namespace accelerate {

/// Thrown once a run that was asked to end (SIGTERM) has saved its state. main() returns its exit_code(),
/// which is ExitCode::kPreempted.
class Preempted : public Error {
 public:
  explicit Preempted(ErrorText text) : Error(std::move(text), ExitCode::kPreempted) {}
};

/// The wish of a scheduler or launcher that this process ends soon: SIGTERM. Process-wide.
class PreemptionSignal {
 public:
  /// From now on SIGTERM only raises a flag; one that comes more than five seconds after the first ends the
  /// process as before. Leaves a handler of the program's own alone. Further calls do nothing.
  static void watch();
  /// Whether SIGTERM has come since watch().
  static bool raised();
  /// Raises the flag as the signal would, or takes it back; for programs that hear of it in another way.
  static void set(bool raised);
};

}  // namespace accelerate
