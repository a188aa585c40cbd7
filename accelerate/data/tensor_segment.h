#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/core/shared_memory.h"
#include "accelerate/data/tensor_dict.h"

namespace accelerate::detail {

/// Where one tensor lies in a segment.
struct TensorSlot {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  size_t offset_bytes = 0;  // from the start of the segment, a multiple of 64
  size_t size_bytes = 0;
};

/// Where all tensors of a data set lie.
struct SegmentLayout {
  std::vector<TensorSlot> slots;
  size_t size_bytes = 0;
};

/// Lays tensors out one after the other.
/// @throws DataError for a tensor that is not dense, is a scalar, or has another number of rows than the
/// rest.
SegmentLayout plan_layout(const TensorDict& tensors);

/// What a builder tells the other ranks, as text: the segment's path and the layout.
std::string encode_layout(const SegmentLayout& layout, const std::string& path);
SegmentLayout decode_layout(const std::string& text, std::string* path);

/// Copies the tensors to their slots.
void fill_segment(const TensorDict& tensors, const SegmentLayout& layout, SharedMemoryMapping& mapping);

/// Tensors over the mapped memory; each keeps the mapping alive.
TensorDict view_segment(const SegmentLayout& layout, std::shared_ptr<SharedMemoryMapping> mapping);

}  // namespace accelerate::detail
