#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accelerate/comm/process_context.h"
#include "accelerate/data/active_loaders.h"
#include "accelerate/data/data_loader.h"
#include "accelerate/data/epoch_plan.h"

namespace accelerate {

/// How an Accelerator shares batches out to its ranks; the names and defaults are HF's, but for
/// use_seedable_sampler.
struct DataLoaderConfiguration {
  /// The loader's batch size is that of all ranks together and must be a multiple of their number. Default:
  /// it is that of each rank.
  bool split_batches = false;
  /// Complete the last round with samples from the epoch's start, so that all ranks see equally many, equally
  /// large batches. Without it, evaluation must not run collectives in every step.
  bool even_batches = true;
  /// The main process alone reads the data, and sends each rank its batches; the others need no data.
  /// Default: for iterable data sets only. Batches must be Serializable.
  std::optional<bool> dispatch_batches = std::nullopt;
  /// Shuffle each epoch with seed + epoch, so that an epoch's order needs no other. Without it, the order is
  /// that of torch's RandomSampler whose generator goes on from epoch to epoch.
  bool use_seedable_sampler = true;
  /// Seeds all shuffling loaders that have no seed of their own.
  std::optional<uint64_t> data_seed = std::nullopt;
  /// Move batches to the rank's device.
  bool device_placement = true;
  /// Copy to a CUDA device on a stream of its own while the loop computes. Batches of pinned memory
  /// (DataLoaderOptions::pin_memory) only.
  bool non_blocking = true;
};

/// Where a loader stands, for checkpoints. Plain numbers: resuming is arithmetic, however far into the epoch.
struct LoaderState {
  int64_t epoch = 0;
  /// Samples of the epoch that all ranks together have been given.
  int64_t samples_seen = 0;
  /// Ranks of the job that wrote it; 0: not known.
  int64_t world_size = 0;
  /// Seed of the order, of a loader that shuffles by itself.
  std::optional<uint64_t> seed = std::nullopt;
};

namespace detail {

/// What a prepared loader is, whatever the type of its data set.
class LoaderCore {
 public:
  /// `dataset_size`: samples, or nullopt for an iterable data set. Collective if batches are dispatched or if
  /// the options ask for a shuffle without a seed: the main process's size and seed count.
  /// @throws DataError for options that can't be, naming the numbers.
  LoaderCore(const ProcessContext& context, std::optional<int64_t> dataset_size,
             const DataLoaderOptions& options, const DataLoaderConfiguration& configuration,
             std::shared_ptr<ActiveLoaders> active);

  /// How samples are shared out; for streams without their number.
  const BatchShard& shard() const { return shard_; }
  const DataLoaderOptions& options() const { return options_; }
  const DataLoaderConfiguration& configuration() const { return configuration_; }
  bool is_stream() const { return is_stream_; }
  bool dispatches() const { return shard_.dispatch; }
  Communicator& communicator() const { return *communicator_; }
  at::Device device() const { return device_; }
  const std::shared_ptr<ActiveLoaders>& active() const { return active_; }

  int64_t epoch() const { return epoch_; }
  /// The next loop runs `epoch`, from its start.
  /// @throws DataError for a negative epoch.
  void set_epoch(int64_t epoch);
  /// The next loop leaves out its first batches.
  /// @throws DataError for a negative count.
  void skip_first_batches(int64_t count);
  LoaderState state() const;
  void load_state(const LoaderState& state);
  /// Batches that the next loop of this rank sees.
  /// @throws DataError for streams.
  int64_t num_batches() const;
  /// 0 if that varies.
  int64_t batch_size_per_rank() const;
  int64_t total_batch_size() const { return batch_size_per_rank() * shard_.world_size; }

 private:
  friend class LoaderPass;
  void choose_sampler(const ProcessContext& context, int64_t dataset_size);
  void shuffle_by(uint64_t seed, int64_t dataset_size);
  void warn_about_size(const ProcessContext& context) const;
  // The plan of `epoch` without its first `samples_seen` samples; null for streams.
  std::unique_ptr<EpochPlan> plan(int64_t epoch, int64_t samples_seen) const;

  DataLoaderOptions options_;
  DataLoaderConfiguration configuration_;
  bool is_stream_;
  BatchShard shard_;
  std::shared_ptr<const Sampler> sampler_;
  std::optional<uint64_t> seed_;  // of a sampler that is ours
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Logger> logger_;
  at::Device device_;
  std::shared_ptr<ActiveLoaders> active_;
  int64_t epoch_ = 0;       // of the next loop
  int64_t next_batch_ = 0;  // at which the next loop begins
  int64_t offset_ = 0;      // samples that the next loop leaves out, before it counts batches
  // The running loop, or the last one if it was left half way.
  LoaderState running_;
  bool running_is_partial_ = false;
};

/// One loop over a loader: its numbers, and its place among the active loops, which the destructor gives up,
/// however the loop was left.
class LoaderPass {
 public:
  explicit LoaderPass(std::shared_ptr<LoaderCore> core);
  ~LoaderPass();
  LoaderPass(const LoaderPass&) = delete;
  LoaderPass& operator=(const LoaderPass&) = delete;

  /// The loop body gets its next batch, with `batches_left` counting it.
  void hand_out(int64_t batches_left, int64_t remainder);
  /// The loop has ended.
  void finish();

  /// Null for streams.
  const EpochPlan* plan() const { return plan_.get(); }
  int64_t epoch() const { return epoch_; }
  /// The batch that the loop begins with.
  int64_t first_batch() const { return first_; }
  /// Samples that a stream leaves out at its start.
  int64_t samples_to_skip() const;
  const LoaderCore& core() const { return *core_; }

 private:
  std::shared_ptr<LoaderCore> core_;
  int64_t epoch_;
  int64_t offset_;
  std::unique_ptr<EpochPlan> plan_;
  int64_t first_;
  int64_t next_;
  std::shared_ptr<LoaderProgress> progress_;
};

/// Throws a DataError that says which batch and samples `error` happened in, with the original nested in it
/// (std::rethrow_if_nested). Call inside a catch block.
[[noreturn]] void rethrow_with_batch(const std::exception& error, int64_t batch,
                                     std::span<const int64_t> indices);

}  // namespace detail
}  // namespace accelerate
