#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::cli {

/// A number in an event file.
struct ScalarEvent {
  std::string tag;
  double wall_time = 0;
  int64_t step = 0;
  double value = 0;
};

/// The scalars of a TensorBoard event file, whoever wrote it: as simple values and as tensors of one float or
/// double. A file that ends within a record ends there.
/// @param problem what is wrong with the file, or empty.
std::vector<ScalarEvent> read_scalar_events(std::string_view file, std::string& problem);

}  // namespace accelerate::cli
