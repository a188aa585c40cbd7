#pragma once

#include <string>

#include "accelerate/config/schema.h"
#include "config/config_test_support.h"
#include "test_support.h"

namespace accelerate::test {

/// Writes, loads, and expects the same values, no errors, and the same bytes again.
inline void check_comes_back(const Config& config, const MachineFacts& machine,
                             const std::string& extension) {
  const TempFolder folder;
  const std::string bytes = extension == ".json" ? write_json(config) : write_yaml(config);
  const auto file = folder.write("c" + extension, bytes);
  const EnvVars none;
  const Config back = load_config({.file = file, .environment = none, .machine = machine});
  INFO(bytes);
  CHECK(differing_keys(back, config).empty());
  for (const ValidateFor purpose : {ValidateFor::kLaunch, ValidateFor::kFile}) {
    const auto problems = validate(back, purpose);
    INFO(joined(problems));
    CHECK_FALSE(has_errors(problems));
  }
  CHECK((extension == ".json" ? write_json(back) : write_yaml(back)) == bytes);
}

}  // namespace accelerate::test
