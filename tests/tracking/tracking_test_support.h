#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "launch_test_support.h"
#include "support/checks.h"
#include "support/thread_ranks.h"
#include "test_support.h"

namespace accelerate::test {

using testing::read_file;
using testing::TempDir;

/// What a script in tests/parity/ wrote.
inline nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(read_file(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/" + name));
}

/// A context of one rank that does not look at the machine's environment.
inline AcceleratorOptions alone() {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "alone"};
  return options;
}

}  // namespace accelerate::test
