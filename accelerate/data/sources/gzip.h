#pragma once

#include <string>

namespace accelerate::detail {

/// The content of a file, unpacked if it is gzipped.
/// @throws DataError naming the path when it can't be read or is cut off.
std::string read_maybe_gzipped(const std::string& path);

}  // namespace accelerate::detail
