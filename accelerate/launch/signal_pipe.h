#pragma once

#include <signal.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// Turns signals into bytes of a pipe that an event loop can wait on, whichever thread they arrive at.
/// Restores the former actions at its end. Signals are a property of the process, so only one may exist at a
/// time.
class SignalPipe {
 public:
  /// @throws LaunchError if there is one already.
  explicit SignalPipe(std::span<const int> signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// Readable when a signal has arrived.
  int fd() const { return read_end_.get(); }
  /// The next signal in order of arrival, or nothing.
  std::optional<int> next();

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace accelerate::detail
