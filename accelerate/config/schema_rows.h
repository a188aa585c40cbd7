#pragma once

#include <span>

#include "accelerate/config/schema.h"

namespace accelerate::detail {

/// The table behind schema().
std::span<const KeyRow> schema_rows();

}  // namespace accelerate::detail
