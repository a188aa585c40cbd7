#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::cli {

/// One machine of an Open MPI hostfile.
struct HostEntry {
  std::string name;
  /// Processes that it takes. Nothing: Open MPI counts its cores, which can't be known from here.
  std::optional<int> slots;
};

/// Reads "node1 slots=4" lines in Open MPI's form: '#' begins a comment, a machine may stand on several lines
/// and then has the sum of their slots (1 for a line without).
/// @throws ConfigError naming file, line and what is wrong there; also when it can't be read or names no
/// machine. `named_by` tells there who names the file.
std::vector<HostEntry> read_hostfile(const std::string& path, const std::string& named_by = {});

}  // namespace accelerate::cli
