#pragma once

#include <vector>

#include "accelerate/config/config.h"

namespace accelerate::detail {

/// Fills in what follows from other values or from the machine, after all sources are merged, and says so in
/// `origins` and, where somebody may have meant otherwise, in a warning.
void derive(Config& config, std::vector<Problem>& problems);

}  // namespace accelerate::detail
