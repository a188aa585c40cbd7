#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// How to build a program with the library that this `accel` belongs to; see AccelerateBuildFlags.cmake. All
/// paths are absolute.
struct BuildFlags {
  std::string file;  ///< where this was read
  std::string version;
  bool torch = false;    ///< the library has more than its torch-free part
  std::string compiler;  ///< what the library was built with; need not be there
  std::vector<std::string> include_directories;
  std::vector<std::string> definitions;
  std::vector<std::string> compile_options;
  std::vector<std::string> link_options;
  std::vector<std::string> libraries;  ///< files, or -lNAME
  std::vector<std::string> run_paths;
};

/// Reads build_flags.json, which lies in a fixed place from the running program's.
/// @throws LaunchError when it is not there or damaged.
BuildFlags read_build_flags();

/// Words of a shell-like text: blanks separate, quotes and backslashes protect.
std::vector<std::string> split_words(const std::string& text);

}  // namespace accelerate::cli
