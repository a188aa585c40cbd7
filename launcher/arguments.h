#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// A command line made ready for CLI11.
struct ParsedArguments {
  std::vector<std::string> own;      ///< ours, flags in their registered spelling
  std::vector<std::string> program;  ///< for `accel launch`: the program and all that follows it, untouched
};

/// Name of the subcommand whose first plain word is a program with arguments of its own.
inline constexpr const char* kLaunch = "launch";

/// Goes through the words after "accel": '-' and '_' inside the names of flags are the same, and for `accel
/// launch` everything from the program (or after "--") on is cut off before anybody looks for flags in it.
/// @throws ConfigError for a subcommand or flag that does not exist, with the nearest one that does.
ParsedArguments parse_arguments(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace accelerate::cli
