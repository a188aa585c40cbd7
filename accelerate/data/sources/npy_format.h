#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace accelerate::detail {

/// Reads an array in NumPy's .npy format out of `bytes`, which `owner` keeps alive as long as the tensor
/// lives. `name` is used in messages.
/// @throws DataError
at::Tensor parse_npy(std::span<std::byte> bytes, std::shared_ptr<void> owner, const std::string& name);

}  // namespace accelerate::detail
