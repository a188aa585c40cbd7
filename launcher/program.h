#pragma once

#include <string>

#include "accelerate/environment/env_vars.h"

namespace accelerate::cli {

/// Path of the program that a user named: as given when it holds a '/', else found in PATH.
/// @throws LaunchError saying what is wrong (not found, a folder, not executable, a Python script) and what
/// to type.
std::string find_program(const std::string& name, const EnvVars& variables);

}  // namespace accelerate::cli
