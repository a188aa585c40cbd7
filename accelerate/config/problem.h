#pragma once

#include <span>
#include <string>

namespace accelerate {

/// Where a value came from, in rising precedence.
enum class Origin {
  kDefault,      ///< nobody said anything
  kDetected,     ///< found out about this machine, or follows from another value
  kFile,         ///< the configuration file
  kEnvironment,  ///< an environment variable
  kCommandLine,  ///< a flag
  kCode,         ///< an argument in the program
};

/// An origin and the place within it.
struct ValueOrigin {
  Origin origin = Origin::kDefault;
  std::string detail;  ///< file path, variable, flag, or for kDetected the reason
  int line = 0;        ///< line in the file, from 1; 0 if none

  bool operator==(const ValueOrigin&) const = default;
};

/// "default", "file a.yaml:12", "environment ACCELERATE_USE_CPU", "command line --cpu", ...
std::string describe(const ValueOrigin& origin);

enum class Severity { kWarning, kError };

enum class ProblemKind {
  kContent,      ///< wrong in itself, on whatever machine
  kUnsupported,  ///< a known feature that this release does not have
  kMachine,      ///< does not fit this machine (devices, cores, files)
};

/// One thing that is wrong or doubtful about a configuration.
struct Problem {
  Severity severity = Severity::kError;
  ProblemKind kind = ProblemKind::kContent;
  std::string key;  ///< dotted path, or empty when it concerns the whole file
  std::string what;
  std::string hint;  ///< what to do instead: full sentences, or empty
  ValueOrigin where;
};

/// "a.yaml:12: num_processes: must be 1 or more, got 0. Hint." in one line, without the severity.
std::string describe(const Problem& problem);

bool has_errors(std::span<const Problem> problems);

}  // namespace accelerate
