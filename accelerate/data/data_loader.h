#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/data/sampler.h"

namespace accelerate {

/// How samples become batches.
struct DataLoaderOptions {
  /// Samples in a batch: of each rank, or of all ranks together when the Accelerator splits batches.
  int64_t batch_size = 1;
  /// A new random order each epoch, equal on all ranks, of which each rank takes its part.
  bool shuffle = false;
  /// Leave out the last samples when they fill no batch.
  bool drop_last = false;
  /// Seed of the order. Default: what the main process's generator is seeded with when the loader is
  /// prepared.
  std::optional<uint64_t> seed = std::nullopt;
  /// An order of your own; excludes `shuffle`.
  std::shared_ptr<const Sampler> sampler = nullptr;
  /// Batches of your own; excludes batch_size, shuffle, sampler and drop_last.
  std::shared_ptr<const BatchSampler> batch_sampler = nullptr;
  /// Threads that fetch batches ahead of the loop, in order. 0: the loop fetches each itself, which is best
  /// for data sets of tensors; use threads where get_batch() decodes or transforms.
  int64_t num_workers = 0;
  /// Batches that each thread may be ahead.
  int64_t prefetch_factor = 2;
  /// Put batches into pinned memory, which copies to a CUDA device faster and beside the computation.
  /// Default: when the device is one.
  std::optional<bool> pin_memory = std::nullopt;
  /// Every batch gets memory of its own. Otherwise a batch of samples that lie side by side in a
  /// SharedMemoryDataset is a read-only view.
  bool copy_batches = false;
  /// What the data set gives is this rank's part already (a source that reads its own files, a sampler of
  /// your own): do not share it out again.
  bool already_sharded = false;
  /// DataLoaderConfiguration::even_batches for this loader; default: as configured.
  std::optional<bool> even_batches = std::nullopt;
};

/// A data set and how to cut it into batches. Give it to Accelerator::prepare(), which makes it a loader of
/// this rank's part. A data set is any type with `size()`, `get_batch(std::span<const int64_t>)` const and
/// `BatchType`, cheap to copy: SharedMemoryDataset, SharedRecordDataset, ItemDataset, or your own; or an
/// IterableDataset.
template <class Dataset>
class DataLoader {
 public:
  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {})
      : dataset_(std::move(dataset)), options_(std::move(options)) {}

  const Dataset& dataset() const { return dataset_; }
  const DataLoaderOptions& options() const { return options_; }

 private:
  Dataset dataset_;
  DataLoaderOptions options_;
};

}  // namespace accelerate
