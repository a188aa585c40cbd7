#pragma once

#include <ATen/core/Tensor.h>
#include <arrow/type_fwd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "accelerate/data/ragged.h"

// Arrow's arrays as columns of ours. Seen by the Parquet source only: no public header includes Arrow.
namespace accelerate::detail {

/// What the rows of an Arrow type become. Files that are joined agree in it.
struct ColumnLayout {
  at::ScalarType dtype = at::kByte;
  std::vector<int64_t> sizes = {};  ///< of a row; where rows are ragged, of an element of a row
  bool ragged = false;
  std::string unit = {};  ///< of dates and times, as Arrow writes it, e.g. "us"; empty for all other types

  bool operator==(const ColumnLayout&) const = default;
};

/// "int64", "uint8 of any length", "float [3] of any length".
std::string layout_text(const ColumnLayout& layout);

/// @throws DataError for a type that has no counterpart; `where` is what it calls the column.
ColumnLayout column_layout(const arrow::DataType& type, const std::string& where);

/// Joins arrays of one layout into a column of a known number of rows.
class ColumnBuilder {
 public:
  ColumnBuilder(std::string name, ColumnLayout layout, int64_t rows);

  /// From now on errors name this file and count rows from here.
  void begin_file(const std::string& path);
  /// @throws DataError for a missing value that has no counterpart, or more rows than promised.
  void append(const arrow::Array& array);
  /// @throws DataError when rows are missing.
  Column finish();

 private:
  // The row that an element of the array at hand belongs to; asked for errors only.
  using RowOf = std::function<int64_t(int64_t element)>;

  void append_ragged(const arrow::Array& array);
  template <class View>
  void append_bytes(int64_t count, const View& view);
  template <class List>
  void append_lists(const List& lists);
  void append_dictionary(const arrow::Array& array);
  void write(const arrow::Array& array, std::byte* to, const RowOf& row_of) const;
  void write_fixed_width(const arrow::Array& array, std::byte* to, const RowOf& row_of) const;
  void refuse_nulls(const arrow::Array& array, const RowOf& row_of) const;
  [[noreturn]] void missing_value(int64_t row) const;
  at::Tensor new_values(int64_t count) const;

  std::string name_;
  ColumnLayout layout_;
  int64_t rows_;
  int64_t filled_ = 0;
  std::string path_;
  int64_t file_begin_ = 0;
  int64_t row_bytes_ = 0;          // of a row, or of an element where rows are ragged
  at::Tensor values_;              // not where rows are ragged
  at::Tensor offsets_;             // only where rows are ragged
  std::vector<at::Tensor> parts_;  // of the values of ragged rows
};

}  // namespace accelerate::detail
