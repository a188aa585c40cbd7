#pragma once

#include <string>

#include "accelerate/config/config.h"

namespace accelerate::cli {

/// Replaces the file at `path` by `text` as a whole, or leaves it as it was: a temporary file beside it,
/// fsync, rename. Folders on the way are made; a link is followed; the mode of a file that is there is kept.
/// Signals wait meanwhile.
/// @throws ConfigError naming the path and what the system said.
void replace_file(const std::string& path, const std::string& text);

/// Writes the configuration as YAML, or as JSON where the name ends in .json.
void save_config(const std::string& path, const Config& config);

}  // namespace accelerate::cli
