#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// How rows of different lengths become one tensor.
struct Padding {
  /// What shorter rows are filled up with.
  double value = 0;
  /// The longest row's length is rounded up to a multiple of this; 8 suits tensor cores.
  int64_t multiple_of = 1;
};

/// Rows of different lengths, one after the other: token sequences, encoded images, point clouds. Row i is
/// values[offsets[i]] to values[offsets[i + 1]], exclusive.
struct Ragged {
  at::Tensor values;   ///< [total, ...], any dtype, dense, on the CPU
  at::Tensor offsets;  ///< [rows + 1], int64: 0 first, never falling, `total` last
  Padding padding = {};

  /// Joins rows that have equal shapes but for their first dimension, and one dtype.
  /// @throws DataError naming the first row that doesn't fit.
  static Ragged from_rows(const std::vector<at::Tensor>& rows, const Padding& padding = {});
  /// Joins texts as rows of bytes.
  static Ragged from_strings(const std::vector<std::string>& rows, const Padding& padding = {});

  int64_t size() const { return offsets.size(0) - 1; }
  /// Row i as a view, [length, ...].
  at::Tensor row(int64_t i) const;
  /// Length of every row, [rows], int64.
  at::Tensor lengths() const;
  /// The rows with these numbers in one tensor [count, longest, ...], filled up with padding.value.
  at::Tensor padded(std::span<const int64_t> rows) const;
  /// Lengths of the rows with these numbers, [count], int64.
  at::Tensor lengths(std::span<const int64_t> rows) const;
  /// @throws DataError when values and offsets do not fit together; `name` is what the error calls it.
  void check(const std::string& name) const;
  /// @throws DataError for a row that is not there, as row(), padded() and lengths() do.
  void check_row(int64_t i) const;
};

/// What a data set holds under one name: a row of a tensor, or a row of its own length, for each sample.
using Column = std::variant<at::Tensor, Ragged>;
/// Columns by name.
using ColumnDict = std::map<std::string, Column>;

/// Samples in a column.
int64_t column_size(const Column& column);

}  // namespace accelerate
