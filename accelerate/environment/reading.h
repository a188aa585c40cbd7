#pragma once

#include <string>
#include <string_view>

#include "accelerate/environment/env_vars.h"
#include "accelerate/environment/topology.h"

// What the environments share. Internal to this folder.

namespace accelerate::detail {

/// The integer in `name`. @throws ConfigError naming the variable and the launcher when it is unset.
int required_int(const EnvVars& variables, std::string_view name, std::string_view launcher);

/// The integer in `name`, or `fallback` when it is unset.
int int_or(const EnvVars& variables, std::string_view name, int fallback);

/// `text` with everything that a job id may not hold replaced by '-', cut to 80 characters.
std::string to_job_id(std::string_view text);

/// Sixteen random hexadecimal digits from the kernel.
std::string random_id();

/// True for addresses that only this machine can reach: 127.*, ::1, localhost.
bool is_loopback(std::string_view address);

/// Port for jobs whose launcher names none, as in torchrun.
inline constexpr int kDefaultMasterPort = 29500;

}  // namespace accelerate::detail
