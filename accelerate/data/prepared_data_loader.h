#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "accelerate/comm/process_context.h"
#include "accelerate/comm/tensor_structure.h"
#include "accelerate/data/active_loaders.h"
#include "accelerate/data/batch_shard.h"
#include "accelerate/data/data_loader.h"

namespace accelerate {

/// How an Accelerator shares batches out to its ranks; the names and defaults are HF's.
struct DataLoaderConfiguration {
  /// The loader's batch size is that of all ranks together and must be a multiple of their number. Default:
  /// it is that of each rank.
  bool split_batches = false;
  /// Complete the last round with samples from the epoch's start, so that all ranks see equally many, equally
  /// large batches. Without it, evaluation must not run collectives in every step.
  bool even_batches = true;
  /// Seeds all shuffling loaders that have no seed of their own.
  std::optional<uint64_t> data_seed = std::nullopt;
  /// Move batches to the rank's device.
  bool device_placement = true;
};

namespace detail {

/// What a prepared loader is, whatever the type of its data set.
class LoaderCore {
 public:
  /// Collective if the options ask for a shuffle without a seed: the main process's seed is agreed on.
  /// @throws DataError for a batch size that is not positive or, with split_batches, no multiple of the world
  /// size.
  LoaderCore(const ProcessContext& context, int64_t dataset_size, const DataLoaderOptions& options,
             const DataLoaderConfiguration& configuration, std::shared_ptr<ActiveLoaders> active);

  const BatchShard& shard() const { return shard_; }
  const Sampler& sampler() const { return *sampler_; }
  int64_t epoch() const { return epoch_; }
  void set_epoch(int64_t epoch) { epoch_ = epoch; }
  int64_t batch_size_per_rank() const;
  int64_t total_batch_size() const;
  int64_t remainder() const;
  at::Device device() const { return device_; }
  bool device_placement() const { return device_placement_; }
  const std::shared_ptr<ActiveLoaders>& active() const { return active_; }

 private:
  BatchShard shard_;
  std::shared_ptr<const Sampler> sampler_;
  at::Device device_;
  bool device_placement_;
  std::shared_ptr<ActiveLoaders> active_;
  int64_t epoch_ = 0;
};

/// One loop over a loader. Its destructor takes the loop out of the active ones, however it was left.
class LoaderPass {
 public:
  explicit LoaderPass(std::shared_ptr<LoaderCore> core);
  ~LoaderPass();
  LoaderPass(const LoaderPass&) = delete;
  LoaderPass& operator=(const LoaderPass&) = delete;

  bool done() const { return next_ > num_batches_; }
  /// Goes to the next batch and returns its sample numbers, valid until the next call; empty at the end.
  std::span<const int64_t> advance();
  const LoaderCore& core() const { return *core_; }

 private:
  std::shared_ptr<LoaderCore> core_;
  std::vector<int64_t> order_;
  std::vector<int64_t> indices_;
  int64_t num_batches_;
  int64_t next_ = 0;
  std::shared_ptr<LoaderProgress> progress_;
};

}  // namespace detail

/// A loader of this rank's part of the data. Iterate with `for (auto& batch : loader)`; every such loop is
/// one epoch, with its own order, also when it is left half way. Cheap to copy: copies share the epoch count.
template <class Dataset>
class PreparedDataLoader {
 public:
  using Batch = typename Dataset::BatchType;

  /// Single pass: one loop at a time through one iterator.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    Iterator(const Dataset* dataset, std::shared_ptr<detail::LoaderPass> pass)
        : dataset_(dataset), pass_(std::move(pass)) {
      fetch();
    }
    Batch& operator*() { return batch_; }
    Batch* operator->() { return &batch_; }
    Iterator& operator++() {
      fetch();
      return *this;
    }
    void operator++(int) { fetch(); }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.pass_ == nullptr || iterator.pass_->done();
    }

   private:
    void fetch() {
      const std::span<const int64_t> indices = pass_->advance();
      if (pass_->done()) {
        pass_.reset();
        return;
      }
      batch_ = dataset_->get_batch(indices);
      const detail::LoaderCore& core = pass_->core();
      if (core.device_placement() && !core.device().is_cpu()) {
        for_each_tensor(batch_, [&](at::Tensor& tensor) {
          if (tensor.defined()) tensor = tensor.to(core.device());
        });
      }
    }

    const Dataset* dataset_ = nullptr;
    std::shared_ptr<detail::LoaderPass> pass_;
    Batch batch_;
  };

  PreparedDataLoader(Dataset dataset, std::shared_ptr<detail::LoaderCore> core)
      : dataset_(std::move(dataset)), core_(std::move(core)) {}

  Iterator begin() { return Iterator(&dataset_, std::make_shared<detail::LoaderPass>(core_)); }
  std::default_sentinel_t end() { return {}; }

  /// Batches that a loop of this rank sees; exactly as many as iteration yields.
  int64_t size() const { return core_->shard().num_batches(); }
  /// Samples in a full batch of this rank.
  int64_t batch_size() const { return core_->batch_size_per_rank(); }
  /// Samples that all ranks together see in one step.
  int64_t total_batch_size() const { return core_->total_batch_size(); }
  /// Number of the epoch that the next loop runs; counts up with every loop.
  int64_t epoch() const { return core_->epoch(); }
  /// Lets the next loop run epoch `epoch`. Not needed in ordinary training.
  void set_epoch(int64_t epoch) { core_->set_epoch(epoch); }
  const Dataset& dataset() const { return dataset_; }

 private:
  Dataset dataset_;
  std::shared_ptr<detail::LoaderCore> core_;
};

}  // namespace accelerate
