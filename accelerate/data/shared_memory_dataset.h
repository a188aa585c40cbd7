#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/process_context.h"
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

inline TensorDict to_tensor_dict(TensorDict tensors) {
  return tensors;
}
inline TensorDict to_tensor_dict(at::Tensor data) {
  return {{"data", std::move(data)}};
}
inline TensorDict to_tensor_dict(std::pair<at::Tensor, at::Tensor> parts) {
  return {{"data", std::move(parts.first)}, {"target", std::move(parts.second)}};
}
template <ExampleLike Example>
TensorDict to_tensor_dict(Example example) {
  return {{"data", std::move(example.data)}, {"target", std::move(example.target)}};
}

}  // namespace detail

/// A data set of named tensors, held once per machine. The local main process loads it into a shared-memory
/// segment; the other ranks of the machine map the same pages read-only. Cheap to copy: copies share the
/// memory, which lives as long as the last copy or tensor of it. Reading is thread-safe.
class SharedMemoryDataset {
 public:
  using BatchType = Batch;

  /// Collective over the ranks of each machine, in the same order on all. `load` runs on the local main
  /// process only and returns a TensorDict, a tensor ("data"), a pair or an Example ("data" and "target");
  /// all tensors must have the same first dimension, the number of samples. Any dtype and shape that is
  /// dense.
  /// @throws DataError on every rank of the machine when `load` throws, when the tensors do not fit together,
  /// or when there is no room (with the bytes needed and free).
  template <class Load>
  static SharedMemoryDataset create(const ProcessContext& context, Load&& load,
                                    const SharedMemoryDatasetOptions& options = {}) {
    return build(
        context, [&] { return detail::to_tensor_dict(load()); }, options);
  }

  /// Local. For arrays in mapped files (load_npy, load_raw, load_safetensors): `load` runs on every rank and
  /// nothing is copied, since the ranks of a machine share the pages of a mapped file anyway. Works for data
  /// larger than memory. Returns what create() does.
  /// @throws what `load` throws, and DataError when the tensors do not fit together.
  template <class Load>
  static SharedMemoryDataset map(Load&& load) {
    return from_tensors(detail::to_tensor_dict(load()));
  }

  /// Samples.
  int64_t size() const;
  /// Bytes of all tensors.
  int64_t size_bytes() const;
  /// Names, sorted.
  std::vector<std::string> names() const;
  /// The whole tensor called `name`. Its memory is read-only: a write to it is a segmentation fault, so
  /// clone() first.
  /// @throws DataError listing the names there are.
  const at::Tensor& tensor(const std::string& name) const;

  /// The samples with these numbers, one gather a tensor, in fresh memory.
  /// @throws DataError for a number outside 0 to size() - 1.
  Batch get_batch(std::span<const int64_t> indices) const;

 private:
  struct Contents;
  explicit SharedMemoryDataset(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  static SharedMemoryDataset from_tensors(TensorDict tensors);
  static SharedMemoryDataset build(const ProcessContext& context, const std::function<TensorDict()>& load,
                                   const SharedMemoryDatasetOptions& options);

  std::shared_ptr<const Contents> contents_;
};

}  // namespace accelerate
