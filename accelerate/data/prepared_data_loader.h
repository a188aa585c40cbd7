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
#include "accelerate/data/prefetcher.h"

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

/// Where a loader stands, for checkpoints. Plain numbers: resuming is arithmetic, however far into the epoch.
struct LoaderState {
  int64_t epoch = 0;
  /// Samples of the epoch that all ranks together have been given.
  int64_t samples_seen = 0;
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
  /// The next loop runs `epoch`, from its start.
  void set_epoch(int64_t epoch);
  /// The next loop leaves out its first batches.
  void skip_first_batches(int64_t count) { next_batch_ = count; }
  LoaderState state() const;
  void load_state(const LoaderState& state);
  int64_t num_workers() const { return num_workers_; }
  int64_t prefetch_factor() const { return prefetch_factor_; }
  int64_t batch_size_per_rank() const;
  int64_t total_batch_size() const;
  at::Device device() const { return device_; }
  bool device_placement() const { return device_placement_; }
  const std::shared_ptr<ActiveLoaders>& active() const { return active_; }

 private:
  friend class LoaderPass;
  BatchShard shard_;
  std::shared_ptr<const Sampler> sampler_;
  at::Device device_;
  bool device_placement_;
  std::shared_ptr<ActiveLoaders> active_;
  int64_t num_workers_;
  int64_t prefetch_factor_;
  int64_t epoch_ = 0;       // of the next loop
  int64_t next_batch_ = 0;  // at which the next loop begins
  int64_t offset_ = 0;      // BatchShard::offset of the next loop
  // The running loop, or the last one if it was left half way.
  LoaderState running_;
  bool running_is_partial_ = false;
};

/// One loop over a loader. Its destructor takes the loop out of the active ones, however it was left.
class LoaderPass {
 public:
  explicit LoaderPass(std::shared_ptr<LoaderCore> core);
  ~LoaderPass();
  LoaderPass(const LoaderPass&) = delete;
  LoaderPass& operator=(const LoaderPass&) = delete;

  /// Goes to the next batch; false if there is none left.
  bool advance();
  /// Number of the current batch.
  int64_t batch() const { return next_ - 1; }
  int64_t num_batches() const { return num_batches_; }
  int64_t first_batch() const { return first_; }
  /// Sample numbers of batch `k`. Thread-safe.
  std::vector<int64_t> indices(int64_t k) const;
  const LoaderCore& core() const { return *core_; }

 private:
  std::shared_ptr<LoaderCore> core_;
  BatchShard shard_;
  std::vector<int64_t> order_;
  int64_t epoch_ = 0;
  int64_t num_batches_;
  int64_t first_;
  int64_t next_;
  std::shared_ptr<LoaderProgress> progress_;
};

}  // namespace detail

namespace detail {

/// Throws a DataError that says which batch and samples `error` happened in, with the original nested in it
/// (std::rethrow_if_nested). Call inside a catch block.
[[noreturn]] void rethrow_with_batch(const std::exception& error, int64_t batch,
                                     std::span<const int64_t> indices);

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

    Iterator(const Dataset* dataset, std::shared_ptr<detail::LoaderPass> pass)
        : dataset_(dataset), pass_(std::move(pass)) {
      const detail::LoaderCore& core = pass_->core();
      if (core.num_workers() > 0) {
        prefetcher_ = std::make_unique<detail::Prefetcher<Batch>>(
            pass_->first_batch(), pass_->num_batches(), core.num_workers(),
            core.num_workers() * core.prefetch_factor(),
            [dataset, held = pass_](int64_t k) { return fetch(*dataset, *held, k); });
      }
      step();
    }
    Batch& operator*() { return batch_; }
    Batch* operator->() { return &batch_; }
    Iterator& operator++() {
      step();
      return *this;
    }
    void operator++(int) { step(); }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.pass_ == nullptr;
    }

   private:
    static Batch fetch(const Dataset& dataset, const detail::LoaderPass& pass, int64_t k) {
      const std::vector<int64_t> indices = pass.indices(k);
      try {
        return dataset.get_batch(indices);
      } catch (const std::exception& error) {
        detail::rethrow_with_batch(error, k, indices);
      }
    }

    void step() {
      if (!pass_->advance()) {
        prefetcher_.reset();
        pass_.reset();
        return;
      }
      batch_ = prefetcher_ ? prefetcher_->next() : fetch(*dataset_, *pass_, pass_->batch());
      const detail::LoaderCore& core = pass_->core();
      if (core.device_placement() && !core.device().is_cpu()) {
        for_each_tensor(batch_, [&](at::Tensor& tensor) {
          if (tensor.defined()) tensor = tensor.to(core.device());
        });
      }
    }

    const Dataset* dataset_ = nullptr;
    std::shared_ptr<detail::LoaderPass> pass_;
    std::unique_ptr<detail::Prefetcher<Batch>> prefetcher_;
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
  /// The next loop leaves out its first `count` batches (of each rank). Costs nothing: no batch is fetched
  /// for it.
  void skip_first_batches(int64_t count) { core_->skip_first_batches(count); }
  /// Where the loader stands: within a loop after the current batch, else before the next loop. After a loop
  /// that was left half way it is still the place where that was left.
  LoaderState state() const { return core_->state(); }
  /// Lets the next loop go on from a state, also one that a job with another number of ranks or another batch
  /// size wrote: then the samples that are left are shared out anew, each once.
  void load_state(const LoaderState& state) { core_->load_state(state); }
  const Dataset& dataset() const { return dataset_; }

 private:
  Dataset dataset_;
  std::shared_ptr<detail::LoaderCore> core_;
};

}  // namespace accelerate
