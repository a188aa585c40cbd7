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
  /// Threads that fetch batches ahead of the loop, in order. 0: the loop fetches each itself, which is best
  /// for data sets of tensors; use threads where get_batch() decodes or transforms.
  int64_t num_workers = 0;
  /// Batches that each thread may be ahead.
  int64_t prefetch_factor = 2;
};

/// A data set and how to cut it into batches. Give it to Accelerator::prepare(), which makes it a loader of
/// this rank's part. A data set is any type with `size()` and `get_batch(std::span<const int64_t>)`, cheap to
/// copy.
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
