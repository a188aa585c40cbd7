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
    : device_(context.device), device_placement_(configuration.device_placement), active_(std::move(active)) {
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
  if (shard_.num_batches() == 0 && shard_.num_positions > 0 && shard_.drop_last) {
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

int64_t LoaderCore::remainder() const {
  return shard_.drop_last || !shard_.even_batches ? 0 : shard_.num_positions % total_batch_size();
}

LoaderPass::LoaderPass(std::shared_ptr<LoaderCore> core)
    : core_(std::move(core)),
      order_(core_->sampler().order(core_->epoch())),
      num_batches_(core_->shard().num_batches()),
      progress_(std::make_shared<LoaderProgress>()) {
  core_->set_epoch(core_->epoch() + 1);
  progress_->batches_left = num_batches_ + 1;
  progress_->remainder = core_->remainder();
  core_->active()->push(progress_);
}

LoaderPass::~LoaderPass() {
  core_->active()->remove(progress_.get());
}

std::span<const int64_t> LoaderPass::advance() {
  --progress_->batches_left;
  if (next_++ >= num_batches_) return {};
  indices_ = core_->shard().positions(next_ - 1);
  for (int64_t& index : indices_) index = order_[static_cast<size_t>(index)];
  return indices_;
}

}  // namespace accelerate::detail
