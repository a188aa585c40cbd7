#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/ragged.h"
#include "accelerate/data/tensor_dict.h"

// Readers of the file formats that people keep their data in. All throw DataError naming the file and, where
// it has one, the place in it. Files that hold plain arrays (npy, raw, and npz members that are not
// compressed and lie aligned, which numpy does not see to) are mapped, not read: their pages are shared by
// all ranks of a machine and may be larger than its memory.
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

struct ParquetOptions {
  /// Names of the columns to read, the others cost nothing. Empty: all. The name of a struct stands for all
  /// of its fields.
  std::vector<std::string> columns = {};
};

/// The columns of a Parquet file, or of a folder's *.parquet files one after the other in the order of their
/// names (subfolders, and names that begin with '_' or '.', are passed over). Any compression. Fields of a
/// struct are columns called "struct.field".
///
/// | in the file | here |
/// |---|---|
/// | integers, signed and unsigned, floats, half floats, booleans | a tensor [rows] of the same dtype |
/// | dates | int64, days since 1970-01-01 |
/// | timestamps, times, durations | int64, in the column's own unit: s, ms, us or ns |
/// | text, bytes, dictionary-encoded too | Ragged, uint8 |
/// | bytes of a fixed size | a tensor [rows, size], uint8 |
/// | lists of any of the numbers above | Ragged of their dtype |
/// | lists of a fixed size of these, also nested, also inside a list | a further dimension of that size |
/// | arrow.fixed_shape_tensor | a tensor [rows, shape...] |
///
/// Missing values are NaN in columns and lists of floats, and an error elsewhere. Rows are read one row group
/// at a time, its columns by several threads (as many as OMP_NUM_THREADS says, else all cores); memory holds
/// the result and one row group. Nothing is shared between processes: use it with
/// SharedMemoryDataset::create(), not map().
///
/// Reading Parquet is an optional part of the library (ACCELERATE_PARQUET): a build without it throws
/// DataError that says how to get it. has_parquet() tells.
/// @throws DataError for a file that is not there, damaged or not Parquet; for an unknown column, with the
/// nearest name; for a missing value, with column and row (counted from 0 in its file); for any other type,
/// with column and type; for files of one folder that differ in their columns.
ColumnDict load_parquet(const std::string& path, const ParquetOptions& options = {});

/// Whether this build of the library reads Parquet.
bool has_parquet();

}  // namespace accelerate
