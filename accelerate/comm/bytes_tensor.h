#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

// Bytes as what collectives take, and back.
namespace accelerate::detail {

/// `text` as a uint8 tensor of `size` elements, filled up with zeros; `size` is at least the text's.
at::Tensor bytes_tensor(std::string_view text, int64_t size);

/// The elements of a contiguous uint8 tensor.
std::string text_of_bytes(const at::Tensor& bytes);

}  // namespace accelerate::detail
