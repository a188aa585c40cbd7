#pragma once

#include <string>

#include "accelerate/config/raw.h"

namespace accelerate::detail {

/// Reads a file and parses it by its content (.json is JSON; anything else YAML, or JSON where it is that).
/// @throws ConfigError when it is missing, a directory, not readable, empty, far too large, no text, or does
/// not hold keys and values.
RawNode read_config_file(const std::string& path);

}  // namespace accelerate::detail
