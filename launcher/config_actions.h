#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "accelerate/environment/env_vars.h"

namespace accelerate::cli {

/// What `accel config` was asked for.
struct ConfigRequest {
  std::optional<std::string> file;                      ///< none: the default place
  bool force = false;                                   ///< overwrite without asking
  std::string mixed_precision;                          ///< for the basic file only
  std::optional<int64_t> num_processes = std::nullopt;  ///< for checking only: that of the launch
};

/// Where the actions read and write, so that tests can stand in for a terminal.
struct ConfigIo {
  const EnvVars& variables;
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  /// `in` and `out` are a terminal that shows menus.
  bool terminal = false;
};

// Each returns the exit code; errors are thrown (accelerate::Error).

/// Asks the questions and saves the answers.
int ask_and_save(const ConfigRequest& request, const ConfigIo& io);
/// Saves a basic file without asking; an existing file is an error unless `force`.
int save_basic(const ConfigRequest& request, const ConfigIo& io);
/// Prints every value that a launch would use, with its origin, and the warnings.
int show_config(const ConfigRequest& request, const ConfigIo& io);
/// Prints all that is wrong with a file by itself, also one of DeepSpeed's; 2 if there is an error.
int validate_file(const ConfigRequest& request, const ConfigIo& io);
/// Rewrites a file with today's spellings.
int update_file(const ConfigRequest& request, const ConfigIo& io);

}  // namespace accelerate::cli
