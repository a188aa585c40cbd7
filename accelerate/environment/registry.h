#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "accelerate/environment/env_vars.h"
#include "accelerate/environment/topology.h"

namespace accelerate {

/// One way in which processes are started. One file each; the order of the registry decides who is asked
/// first.
class Environment {
 public:
  virtual ~Environment() = default;
  /// As in Topology::launcher.
  virtual std::string_view name() const = 0;
  /// True if the variables show that this launcher started the process.
  virtual bool detected(const EnvVars& variables) const = 0;
  /// @throws ConfigError naming the variable when one is missing or no number.
  virtual Topology read(const EnvVars& variables) const = 0;
};

/// All known environments, the most specific first; `plain` is last and always detected.
const std::vector<std::unique_ptr<Environment>>& environments();

/// Asks the environments in order and checks what the first detected one says.
/// @throws ConfigError when a variable is missing or malformed or the numbers contradict one another.
Topology detect_topology(const EnvVars& variables);

/// Checks that the numbers fit together: 0 <= rank < world_size, local ranks within the machine, port in
/// 0..65535.
/// @throws ConfigError naming the two numbers that don't fit and the variables they came from.
void validate_topology(const Topology& topology);

}  // namespace accelerate
