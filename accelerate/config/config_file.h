#pragma once

#include <string>
#include <string_view>

#include "accelerate/config/raw.h"

namespace accelerate::detail {

/// How messages speak of a file.
struct FileTerms {
  std::string_view noun = "configuration file";
  bool made_by_config = true;  ///< `accel config` can write one
};

/// The text of a file, without a byte order mark.
/// @throws ConfigError when it is missing, a directory, not readable, empty, far too large, or no text; a
/// pipe gets ten seconds.
std::string read_text_file(const std::string& path, const FileTerms& terms);

/// Reads a file and parses it by its content (.json is JSON; anything else YAML, or JSON where it is that).
/// @throws ConfigError when it is missing, a directory, not readable, empty, far too large, no text, or does
/// not hold keys and values.
RawNode read_config_file(const std::string& path);

}  // namespace accelerate::detail
