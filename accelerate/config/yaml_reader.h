#pragma once

#include <string>

#include "accelerate/config/raw.h"

namespace accelerate::detail {

/// Parses one YAML document. `path` is for messages.
/// @throws ConfigError with file and line: no YAML, tabs as indentation, an unclosed quote, several
/// documents, a template's placeholder where a key should be.
RawNode read_yaml(const std::string& text, const std::string& path);

}  // namespace accelerate::detail
