#pragma once

#include <optional>
#include <stdexcept>
#include <string>

namespace accelerate {

/// What a process that ends because of one of our errors should exit with. `accel launch` tells a rank that
/// failed by itself from one that only lost its peers by kCommError. Documented in README.md; never
/// renumbered.
enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,          ///< any other error
  kConfigError = 2,      ///< bad configuration or command line
  kLaunchError = 3,      ///< ranks could not be started
  kCommError = 4,        ///< a collective or the rendezvous failed, usually because a peer is gone
  kDataError = 5,        ///< data set or loader
  kCheckpointError = 6,  ///< saving or loading
  kPreempted = 75,       ///< asked to end, state saved: start it again to go on (EX_TEMPFAIL of sysexits.h)
};

/// The parts of an error message. Only `what` is needed; empty parts are left out. Reads as
/// "rank 1: WHAT: expected EXPECTED, got GOT. HINT".
struct ErrorText {
  std::string what;           ///< what went wrong and where (file, key, operation)
  std::string expected = {};  ///< what would have been right
  std::string got = {};       ///< what was found instead
  std::string hint = {};      ///< what to type or do instead, a full sentence
  std::optional<int> rank = std::nullopt;
  /// Only repeats what went wrong on another rank. The exit code is then kCommError, so that the launcher
  /// names that rank and not this one.
  bool echo = false;
};

/// Base of all errors that the library throws. Carries its message in parts and the exit code for main().
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorText text, ExitCode code = ExitCode::kFailure);

  const ErrorText& text() const noexcept { return text_; }
  /// For `return error.exit_code();` in main().
  int exit_code() const noexcept { return static_cast<int>(code_); }

 private:
  ErrorText text_;
  ExitCode code_;
};

/// A configuration file, environment variable, flag or argument that can't be used.
class ConfigError : public Error {
 public:
  explicit ConfigError(ErrorText text) : Error(std::move(text), ExitCode::kConfigError) {}
};

/// The ranks of a job could not be started or supervised.
class LaunchError : public Error {
 public:
  explicit LaunchError(ErrorText text) : Error(std::move(text), ExitCode::kLaunchError) {}
};

/// A collective or the rendezvous failed: a peer is gone, late, or disagrees.
class CommError : public Error {
 public:
  explicit CommError(ErrorText text) : Error(std::move(text), ExitCode::kCommError) {}
};

/// A data set, sampler or loader can't be built or read.
class DataError : public Error {
 public:
  explicit DataError(ErrorText text) : Error(std::move(text), ExitCode::kDataError) {}
};

/// Saving or loading weights or state failed.
class CheckpointError : public Error {
 public:
  explicit CheckpointError(ErrorText text) : Error(std::move(text), ExitCode::kCheckpointError) {}
};

/// What an exception says, without the stack trace that torch's errors carry. For main().
std::string error_message(const std::exception& error);

/// What main() should return for an exception: its own code for an Error, 1 for any other.
int exit_code(const std::exception& error);

/// "No space left on device (28)".
std::string errno_text(int error_number);

}  // namespace accelerate
