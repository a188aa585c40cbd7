#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/tensor_dict.h"

// Readers of the file formats that people keep their data in. All throw DataError naming the file and, where
// it has one, the place in it. Files that hold plain arrays (npy, npz members that are not compressed, raw)
// are mapped, not read: their pages are shared by all ranks of a machine and may be larger than its memory.
namespace accelerate {

/// A NumPy array (.npy, format versions 1 to 3) of numbers or booleans. Fortran order comes as a transposed
/// view.
at::Tensor load_npy(const std::string& path);

/// All arrays of a NumPy archive (.npz), by name; compressed members are unpacked into memory.
TensorDict load_npz(const std::string& path);

/// An IDX file, as MNIST's images and labels are distributed, plain or gzipped.
at::Tensor load_idx(const std::string& path);

/// An array without a header: `sizes` elements of `dtype`, `offset_bytes` into the file. One size may be -1:
/// as many as there are.
at::Tensor load_raw(const std::string& path, at::ScalarType dtype, std::vector<int64_t> sizes,
                    int64_t offset_bytes = 0);

struct CsvOptions {
  char delimiter = ',';
  /// The first line holds names. Default: it does if one of its fields is no number.
  std::optional<bool> header = std::nullopt;
};

/// A table of numbers as text.
struct CsvTable {
  std::vector<std::string> names;  ///< of the columns; empty without a header
  at::Tensor values;               ///< [rows, columns], float64; an empty field is NaN
  /// A column as a 1-d tensor. @throws DataError with the nearest name.
  at::Tensor column(const std::string& name) const;
};

/// Reads a CSV file, plain or gzipped; quotes around fields, blank lines, CRLF and a byte-order mark are
/// understood.
/// @throws DataError with line and column of the first field that is no number, or of a row of another
/// length.
CsvTable load_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace accelerate
