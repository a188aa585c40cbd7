#include "accelerate/data/prepared_data_loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

void check_options(const DataLoaderOptions& options, const DataLoaderConfiguration& configuration,
                   int world_size, int rank) {
  if (options.batch_size <= 0) {
    throw DataError({.what = "batch size of a data loader",
                     .expected = "a positive number",
                     .got = std::to_string(options.batch_size),
                     .rank = rank});
  }
  if (options.num_workers < 0 || options.prefetch_factor < 1) {
    throw DataError({.what = "workers of a data loader",
                     .expected = "num_workers of 0 or more and a prefetch_factor of 1 or more",
                     .got = concat(options.num_workers, " and ", options.prefetch_factor),
                     .rank = rank});
  }
  if (options.shuffle && options.sampler != nullptr) {
    throw DataError({.what = "a data loader has both shuffle and a sampler",
                     .hint = "Leave one out: the sampler decides the order.",
                     .rank = rank});
  }
  if (configuration.split_batches && options.batch_size % world_size != 0) {
    throw DataError({.what = "split_batches",
                     .expected = concat("a batch size that is a multiple of ", world_size, " ranks"),
                     .got = std::to_string(options.batch_size),
                     .hint = concat("Use ", (options.batch_size / world_size + 1) * world_size,
                                    ", or leave split_batches off and give the batch size of each rank."),
                     .rank = rank});
  }
}

// All ranks must draw the same order; the main process's seed counts.
uint64_t agreed_seed(const ProcessContext& context) {
  at::Tensor seed = at::empty({1}, at::TensorOptions(at::kLong));
  seed.fill_(static_cast<int64_t>(at::detail::getDefaultCPUGenerator().current_seed()));
  context.communicator->broadcast(seed, 0);
  return static_cast<uint64_t>(seed.item<int64_t>());
}

}  // namespace

LoaderCore::LoaderCore(const ProcessContext& context, int64_t dataset_size, const DataLoaderOptions& options,
                       const DataLoaderConfiguration& configuration, std::shared_ptr<ActiveLoaders> active)
    : device_(context.device),
      device_placement_(configuration.device_placement),
      active_(std::move(active)),
      num_workers_(options.num_workers),
      prefetch_factor_(options.prefetch_factor) {
  const int world_size = context.topology.world_size;
  check_options(options, configuration, world_size, context.topology.rank);
  if (options.sampler != nullptr) {
    sampler_ = options.sampler;
  } else if (options.shuffle) {
    const auto seed = options.seed ? options.seed : configuration.data_seed;
    sampler_ = std::make_shared<RandomSampler>(dataset_size, seed ? *seed : agreed_seed(context));
  } else {
    sampler_ = std::make_shared<SequentialSampler>(dataset_size);
  }
  shard_ = {.num_positions = sampler_->size(),
            .batch_size = options.batch_size,
            .world_size = world_size,
            .rank = context.topology.rank,
            .split_batches = configuration.split_batches,
            // One rank has nobody to be even with: its last batch stays short, as in HF.
            .even_batches = configuration.even_batches && world_size > 1,
            .drop_last = options.drop_last};
  if (shard_.num_positions == 0) {
    context.logger->warning("a data loader yields no batch at all: its data set is empty");
  } else if (shard_.num_batches() == 0 && shard_.num_positions > 0 && shard_.drop_last) {
    context.logger->warning(concat("a data loader yields no batch at all: ", shard_.num_positions,
                                   " samples are fewer than one round of ", total_batch_size(),
                                   ", and drop_last is on"));
  } else if (shard_.even_batches && shard_.num_positions < total_batch_size() && shard_.num_positions > 0) {
    context.logger->warning(concat(shard_.num_positions, " samples < ", batch_size_per_rank(), " x ",
                                   world_size, ": samples will repeat"));
  }
}

int64_t LoaderCore::batch_size_per_rank() const {
  return shard_.split_batches ? shard_.batch_size / shard_.world_size : shard_.batch_size;
}

int64_t LoaderCore::total_batch_size() const {
  return batch_size_per_rank() * shard_.world_size;
}

void LoaderCore::set_epoch(int64_t epoch) {
  epoch_ = epoch;
  next_batch_ = 0;
  offset_ = 0;
  running_is_partial_ = false;
}

LoaderState LoaderCore::state() const {
  if (running_is_partial_) return running_;
  return {.epoch = epoch_,
          .samples_seen = std::min(offset_ + next_batch_ * total_batch_size(), shard_.num_positions)};
}

void LoaderCore::load_state(const LoaderState& state) {
  if (state.epoch < 0 || state.samples_seen < 0 || state.samples_seen > shard_.num_positions) {
    throw DataError({.what = "state of a data loader",
                     .expected = concat("up to ", shard_.num_positions, " samples of an epoch"),
                     .got = concat(state.samples_seen, " samples of epoch ", state.epoch),
                     .hint = "It was written for another data set."});
  }
  set_epoch(state.epoch);
  // Whole rounds of this job: the loop goes on exactly as it would have. Otherwise what is left is shared out
  // anew.
  if (state.samples_seen % total_batch_size() == 0) {
    next_batch_ = state.samples_seen / total_batch_size();
  } else {
    offset_ = state.samples_seen;
  }
}

LoaderPass::LoaderPass(std::shared_ptr<LoaderCore> core)
    : core_(std::move(core)),
      shard_(core_->shard()),
      order_(core_->sampler().order(core_->epoch())),
      progress_(std::make_shared<LoaderProgress>()) {
  shard_.offset = core_->offset_;
  num_batches_ = shard_.num_batches();
  first_ = std::min(core_->next_batch_, num_batches_);
  next_ = first_;
  epoch_ = core_->epoch();
  core_->set_epoch(epoch_ + 1);
  core_->running_ = {.epoch = epoch_, .samples_seen = 0};
  core_->running_is_partial_ = true;
  progress_->batches_left = num_batches_ - first_ + 1;
  const int64_t total = core_->total_batch_size();
  progress_->remainder =
      shard_.drop_last || !shard_.even_batches ? 0 : (shard_.num_positions - shard_.offset) % total;
  core_->active()->push(progress_);
}

LoaderPass::~LoaderPass() {
  core_->active()->remove(progress_.get());
}

bool LoaderPass::advance() {
  --progress_->batches_left;
  if (next_ >= num_batches_) {
    core_->running_is_partial_ = false;
    return false;
  }
  ++next_;
  // After the last batch nothing of this epoch is left to go on with.
  const int64_t seen = std::min(shard_.offset + next_ * core_->total_batch_size(), shard_.num_positions);
  core_->running_ = next_ == num_batches_ ? LoaderState{.epoch = epoch_ + 1, .samples_seen = 0}
                                          : LoaderState{.epoch = epoch_, .samples_seen = seen};
  return true;
}

std::vector<int64_t> LoaderPass::indices(int64_t k) const {
  std::vector<int64_t> out = shard_.positions(k);
  for (int64_t& index : out) index = order_[static_cast<size_t>(index)];
  return out;
}

void rethrow_with_batch(const std::exception& error, int64_t batch, std::span<const int64_t> indices) {
  std::string samples;
  for (size_t i = 0; i < std::min<size_t>(indices.size(), 8); ++i)
    samples += concat(i > 0 ? ", " : "", indices[i]);
  if (indices.size() > 8) samples += ", ...";
  std::throw_with_nested(
      DataError({.what = concat("batch ", batch, " (samples ", samples, "): ", error_message(error))}));
}

}  // namespace accelerate::detail
