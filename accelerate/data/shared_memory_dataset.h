#pragma once

#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/process_context.h"
#include "accelerate/data/ragged.h"
#include "accelerate/data/tensor_dict.h"

namespace accelerate {

struct SharedMemoryDatasetOptions {
  /// A folder on tmpfs for the shared copy.
  std::string directory = "/dev/shm";
  /// A folder on disk to take when `directory` has too little room (said once on the main process). Empty:
  /// too little room is an error.
  std::string fallback_directory = {};
};

namespace detail {

inline ColumnDict to_columns(ColumnDict columns) {
  return columns;
}
inline ColumnDict to_columns(TensorDict tensors) {
  return {std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end())};
}
inline ColumnDict to_columns(at::Tensor data) {
  return {{"data", std::move(data)}};
}
inline ColumnDict to_columns(Ragged data) {
  return {{"data", std::move(data)}};
}
inline ColumnDict to_columns(const std::vector<at::Tensor>& rows) {
  return {{"data", Ragged::from_rows(rows)}};
}
template <class Data, class Target>
ColumnDict to_columns(std::pair<Data, Target> parts) {
  return {{"data", std::move(parts.first)}, {"target", std::move(parts.second)}};
}
template <ExampleLike Example>
ColumnDict to_columns(Example example) {
  return {{"data", std::move(example.data)}, {"target", std::move(example.target)}};
}

}  // namespace detail

/// A data set of named columns, held once per machine: tensors with a row for each sample, and ragged
/// columns, whose rows have lengths of their own. The local main process loads it into a shared-memory
/// segment; the other ranks of the machine map the same pages. All of it is read-only, also with a single
/// rank. Cheap to copy: copies share the memory, which lives as long as the last copy or tensor of it.
/// Reading is thread-safe.
///
/// Also a source of single items for ItemDataset, where samples need a transform or a collate of their own.
class SharedMemoryDataset {
 public:
  using BatchType = Batch;

  /// Collective over the ranks of each machine, in the same order on all. `load` runs on the local main
  /// process only and returns a TensorDict, a ColumnDict, or what becomes the column "data": a tensor, a
  /// Ragged, a vector of tensors of different lengths; or a pair or an Example of these, "data" and "target".
  /// All columns must have the same number of rows, the samples. Any dtype and shape that is dense.
  /// @throws DataError on every rank of the machine when `load` throws, when the columns do not fit together,
  /// or when there is no room (with the bytes needed and free).
  template <class Load>
  static SharedMemoryDataset create(const ProcessContext& context, Load&& load,
                                    const SharedMemoryDatasetOptions& options = {}) {
    return build(
        context, [&] { return detail::to_columns(load()); }, options);
  }

  /// Local. For arrays in mapped files (load_npy, load_raw, load_safetensors): `load` runs on every rank and
  /// nothing is copied, since the ranks of a machine share the pages of a mapped file anyway. Works for data
  /// larger than memory. The files' mappings become read-only. Returns what create() does.
  /// @throws what `load` throws, and DataError when the columns do not fit together.
  template <class Load>
  static SharedMemoryDataset map(Load&& load) {
    return from_columns(detail::to_columns(load()));
  }

  /// Samples.
  int64_t size() const;
  /// Bytes of all tensors.
  int64_t size_bytes() const;
  /// Names, sorted.
  std::vector<std::string> names() const;
  /// The whole tensor called `name`. Its memory is read-only: a write to it is a segmentation fault, so
  /// clone() first.
  /// @throws DataError listing the names there are, or saying that it is ragged.
  const at::Tensor& tensor(const std::string& name) const;
  /// The ragged column called `name`.
  /// @throws DataError as tensor().
  const Ragged& ragged(const std::string& name) const;

  /// The samples with these numbers. A tensor is one gather into fresh memory or, for samples that lie side
  /// by side, a read-only view; a ragged column is one pass into [count, longest, ...], with the rows'
  /// lengths under its name and "_lengths".
  /// @throws DataError for a number outside 0 to size() - 1.
  Batch get_batch(std::span<const int64_t> indices) const;
  /// Sample `index` alone: read-only views of its rows, without a batch dimension, ragged ones in their own
  /// length.
  /// @throws DataError as get_batch().
  Batch get(size_t index) const;

 private:
  struct Contents;
  explicit SharedMemoryDataset(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  static SharedMemoryDataset from_columns(ColumnDict columns);
  static SharedMemoryDataset build(const ProcessContext& context, const std::function<ColumnDict()>& load,
                                   const SharedMemoryDatasetOptions& options);

  const Column& column(const std::string& name) const;
  void check_index(int64_t index) const;

  std::shared_ptr<const Contents> contents_;
};

}  // namespace accelerate
