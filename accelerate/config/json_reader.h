#pragma once

#include <string>

#include "accelerate/config/raw.h"

namespace accelerate::detail {

/// Parses strict JSON. `path` is for messages.
/// @throws ConfigError with file and line.
RawNode read_json(const std::string& text, const std::string& path);

/// True if `text` is JSON as a whole: HF Accelerate also writes JSON into files called .yaml.
bool is_json(const std::string& text);

}  // namespace accelerate::detail
