#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/core/shared_memory.h"
#include "accelerate/data/ragged.h"

namespace accelerate::detail {

/// Where one tensor lies in a segment.
struct TensorSlot {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  size_t offset_bytes = 0;  // from the start of the segment, a multiple of 64
  size_t size_bytes = 0;
};

/// Where one column lies: a tensor, or the values and offsets of a ragged one.
struct ColumnSlot {
  std::string name;
  bool ragged = false;
  Padding padding = {};
  std::vector<TensorSlot> parts;
};

/// Where all columns of a data set lie.
struct SegmentLayout {
  std::vector<ColumnSlot> columns;
  size_t size_bytes = 0;
};

/// Lays columns out one after the other.
/// @throws DataError for a tensor that is not dense, is a scalar, or has another number of rows than the
/// rest, and for offsets that do not fit their values.
SegmentLayout plan_layout(const ColumnDict& columns);

/// What a builder tells the other ranks, as text: the segment's path and the layout.
std::string encode_layout(const SegmentLayout& layout, const std::string& path);
SegmentLayout decode_layout(const std::string& text, std::string* path);

/// Moves the columns to their slots: each is released once it is copied.
void fill_segment(ColumnDict columns, const SegmentLayout& layout, SharedMemoryMapping& mapping);

/// Columns over the mapped memory; each keeps the mapping alive.
ColumnDict view_segment(const SegmentLayout& layout, std::shared_ptr<SharedMemoryMapping> mapping);

}  // namespace accelerate::detail
