#include "accelerate/data/loader_core.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

DataError bad_options(const std::string& what, const std::string& expected, const std::string& got,
                      const std::string& hint, int rank) {
  return DataError({.what = what, .expected = expected, .got = got, .hint = hint, .rank = rank});
}

void check_options(const DataLoaderOptions& options, bool is_stream, int rank) {
  if (options.batch_size <= 0) {
    throw bad_options("batch size of a data loader", "a positive number", std::to_string(options.batch_size),
                      "", rank);
  }
  if (options.num_workers < 0 || options.prefetch_factor < 1) {
    throw bad_options("workers of a data loader",
                      "num_workers of 0 or more and a prefetch_factor of 1 or more",
                      concat(options.num_workers, " and ", options.prefetch_factor), "", rank);
  }
  if (options.shuffle && options.sampler != nullptr) {
    throw DataError({.what = "a data loader has both shuffle and a sampler",
                     .hint = "Leave one out: the sampler decides the order.",
                     .rank = rank});
  }
  if (options.batch_sampler != nullptr &&
      (options.shuffle || options.sampler != nullptr || options.batch_size != 1 || options.drop_last)) {
    throw DataError(
        {.what = "a data loader has a batch sampler and also batch_size, shuffle, sampler or drop_last",
         .hint = "Leave the others out: the batch sampler decides all of that.",
         .rank = rank});
  }
  if (is_stream && (options.shuffle || options.sampler != nullptr || options.batch_sampler != nullptr)) {
    throw DataError({.what = "shuffle or a sampler for an iterable data set, whose order is its own",
                     .hint = "Shuffle in the source, or use a data set that gives items by number.",
                     .rank = rank});
  }
}

void check_split(int64_t batch_size, bool split_batches, int64_t world_size, int rank) {
  if (!split_batches || batch_size % world_size == 0) return;
  throw bad_options("split_batches", concat("a batch size that is a multiple of ", world_size, " ranks"),
                    std::to_string(batch_size),
                    concat("Use ", (batch_size / world_size + 1) * world_size,
                           ", or leave split_batches off and give the batch size of each rank."),
                    rank);
}

// All ranks must cut the same data in the same way; otherwise they would train on overlapping parts, or wait
// for each other in different steps.
void check_agreement(const ProcessContext& context, int64_t dataset_size, const DataLoaderOptions& options,
                     const DataLoaderConfiguration& configuration) {
  if (context.topology.world_size == 1 || context.communicator->size() == 1) return;
  // Who reads alone, or has a part of his own, may differ in size.
  const bool any_size = options.already_sharded || configuration.dispatch_batches.value_or(dataset_size < 0);
  const std::vector<std::pair<const char*, int64_t>> own = {
      {"data set size", any_size ? 0 : dataset_size},
      {"batch_size", options.batch_size},
      {"shuffle", options.shuffle},
      {"drop_last", options.drop_last},
      {"seed", options.seed ? static_cast<int64_t>(*options.seed) : -1},
      {"sampler", options.sampler != nullptr},
      {"batch_sampler", options.batch_sampler != nullptr},
      {"already_sharded", options.already_sharded},
      {"split_batches", configuration.split_batches},
      {"even_batches", options.even_batches.value_or(configuration.even_batches)},
      {"dispatch_batches", configuration.dispatch_batches ? *configuration.dispatch_batches : -1},
      {"data_seed", configuration.data_seed ? static_cast<int64_t>(*configuration.data_seed) : -1}};
  std::vector<int64_t> numbers;
  for (const auto& [name, value] : own) numbers.push_back(value);
  const at::Tensor mine = at::tensor(numbers, at::TensorOptions(at::kLong)).unsqueeze(0);
  const at::Tensor all = context.communicator->all_gather(mine);
  for (int64_t i = 0; i < all.size(1); ++i) {
    const at::Tensor column = all.select(1, i).contiguous();
    const int64_t* values = column.const_data_ptr<int64_t>();
    std::string list;
    bool differs = false;
    for (int64_t rank = 0; rank < column.numel(); ++rank) {
      differs = differs || values[rank] != values[0];
      list += concat(rank > 0 ? "; " : "", "rank ", rank, ": ", values[rank]);
    }
    if (!differs) continue;
    throw DataError({.what = concat(own[static_cast<size_t>(i)].first, " of a data loader"),
                     .expected = "the same on all ranks",
                     .got = list,
                     .hint = "Prepare the same loaders in the same order on all ranks.",
                     .rank = context.topology.rank});
  }
}

int64_t from_main_process(const ProcessContext& context, int64_t value) {
  at::Tensor agreed = at::full({1}, value, at::TensorOptions(at::kLong));
  context.communicator->broadcast(agreed, 0);
  return agreed.item<int64_t>();
}

// All ranks must draw the same order; the main process's seed counts.
uint64_t agreed_seed(const ProcessContext& context) {
  const uint64_t own = at::detail::getDefaultCPUGenerator().current_seed();
  return static_cast<uint64_t>(from_main_process(context, static_cast<int64_t>(own)));
}

}  // namespace

LoaderCore::LoaderCore(const ProcessContext& context, std::optional<int64_t> dataset_size,
                       const DataLoaderOptions& options, const DataLoaderConfiguration& configuration,
                       std::shared_ptr<ActiveLoaders> active)
    : options_(options),
      configuration_(configuration),
      is_stream_(!dataset_size),
      communicator_(context.communicator),
      logger_(context.logger),
      device_(context.device),
      active_(std::move(active)) {
  const int rank = context.topology.rank;
  const int64_t world_size = context.topology.world_size;
  check_options(options, is_stream_, rank);
  check_agreement(context, dataset_size.value_or(-1), options, configuration);
  shard_ = {.batch_size = options.batch_sampler ? options.batch_sampler->batch_size() : options.batch_size,
            .world_size = world_size,
            .rank = rank,
            .split_batches = configuration.split_batches,
            .even_batches = options.even_batches.value_or(configuration.even_batches),
            .drop_last = options.drop_last,
            .dispatch = configuration.dispatch_batches.value_or(is_stream_) && world_size > 1};
  if (shard_.dispatch && dataset_size) dataset_size = from_main_process(context, *dataset_size);
  if (!is_stream_ && options.batch_sampler == nullptr) choose_sampler(context, *dataset_size);
  if (options.already_sharded || (sampler_ != nullptr && sampler_->already_sharded())) {
    context.logger->info(
        "a data loader's samples are shared out to the ranks already, by its sampler or source; each rank "
        "keeps "
        "what it has");
    shard_.world_size = 1;
    shard_.rank = 0;
    shard_.dispatch = false;
  }
  check_split(shard_.batch_size, shard_.split_batches, shard_.world_size, rank);
  if (sampler_ != nullptr) warn_about_size(context);
}

void LoaderCore::choose_sampler(const ProcessContext& context, int64_t dataset_size) {
  if (options_.sampler != nullptr) {
    sampler_ = options_.sampler;
  } else if (options_.shuffle) {
    const auto given = options_.seed ? options_.seed : configuration_.data_seed;
    shuffle_by(given ? *given : agreed_seed(context), dataset_size);
  } else {
    sampler_ = std::make_shared<SequentialSampler>(dataset_size);
  }
  shard_.num_positions = sampler_->size();
}

void LoaderCore::shuffle_by(uint64_t seed, int64_t dataset_size) {
  seed_ = seed;
  if (configuration_.use_seedable_sampler) {
    sampler_ = std::make_shared<RandomSampler>(dataset_size, seed);
  } else {
    sampler_ = std::make_shared<GeneratorRandomSampler>(dataset_size, seed);
  }
}

void LoaderCore::warn_about_size(const ProcessContext& context) const {
  const int64_t samples = shard_.num_positions;
  if (samples == 0) {
    context.logger->warning("a data loader yields no batch at all: its data set is empty");
  } else if (shard_.drop_last && shard_.num_batches() == 0) {
    context.logger->warning(concat("a data loader yields no batch at all: ", samples,
                                   " samples are fewer than one round of ", total_batch_size(),
                                   ", and drop_last is on"));
  } else if (shard_.even_batches && shard_.world_size > 1 && !shard_.drop_last &&
             samples < total_batch_size() && !shard_.dispatch) {
    context.logger->warning(concat(samples, " samples < ", batch_size_per_rank(), " x ", shard_.world_size,
                                   ": samples will repeat"));
  }
}

std::unique_ptr<EpochPlan> LoaderCore::plan(int64_t epoch, int64_t samples_seen) const {
  if (is_stream_) return nullptr;
  // One rank has nobody to be even with: its last batch stays short, as in HF.
  const bool even = active_->even_batches.value_or(shard_.even_batches) && shard_.world_size > 1;
  if (options_.batch_sampler != nullptr) {
    // The main process deals batches of any size out as each rank would have taken them.
    return plan_epoch(BatchSplit{.world_size = shard_.world_size,
                                 .split_batches = shard_.split_batches,
                                 .even_batches = even || shard_.dispatch},
                      options_.batch_sampler->batches(epoch), samples_seen);
  }
  BatchShard shard = shard_;
  shard.even_batches = even;
  shard.offset = samples_seen;
  const bool reads = !shard.dispatch || shard.rank == 0;
  std::vector<int64_t> order;
  if (reads) {
    order = sampler_->order(epoch);
    if (static_cast<int64_t>(order.size()) != shard.num_positions) {
      throw DataError({.what = concat("the order of a sampler for epoch ", epoch),
                       .expected = concat(shard.num_positions, " samples, as its size() says"),
                       .got = std::to_string(order.size())});
    }
  }
  return plan_epoch(shard, std::move(order));
}

int64_t LoaderCore::num_batches() const {
  if (is_stream_) {
    throw DataError({.what = "the number of batches of an iterable data set is not known before its end"});
  }
  int64_t all = 0;
  if (options_.batch_sampler != nullptr) {
    all = plan(epoch_, offset_)->num_batches(shard_.rank);
  } else {
    BatchShard shard = shard_;
    shard.even_batches = active_->even_batches.value_or(shard.even_batches) && shard.world_size > 1;
    shard.offset = offset_;
    all = shard.num_batches();
  }
  return std::max<int64_t>(0, all - next_batch_);
}

void LoaderCore::skip_first_batches(int64_t count) {
  if (count < 0) {
    throw DataError({.what = "skip_first_batches", .expected = "0 or more", .got = std::to_string(count)});
  }
  next_batch_ = count;
}

int64_t LoaderCore::batch_size_per_rank() const {
  return shard_.split_batches ? shard_.batch_size / shard_.world_size : shard_.batch_size;
}

void LoaderCore::set_epoch(int64_t epoch) {
  if (epoch < 0)
    throw DataError({.what = "set_epoch", .expected = "0 or more", .got = std::to_string(epoch)});
  epoch_ = epoch;
  next_batch_ = 0;
  offset_ = 0;
  running_is_partial_ = false;
}

LoaderState LoaderCore::state() const {
  if (running_is_partial_) return running_;
  LoaderState state{
      .epoch = epoch_, .samples_seen = offset_, .world_size = communicator_->size(), .seed = seed_};
  if (next_batch_ > 0) {
    const auto plan = this->plan(epoch_, offset_);
    state.samples_seen =
        plan ? plan->samples_before(next_batch_) : offset_ + next_batch_ * shard_.round_size();
  }
  return state;
}

void LoaderCore::load_state(const LoaderState& state) {
  const bool too_many = sampler_ != nullptr && state.samples_seen > shard_.num_positions;
  if (state.epoch < 0 || state.samples_seen < 0 || too_many) {
    throw DataError({.what = "state of a data loader",
                     .expected = sampler_ == nullptr
                                     ? std::string("numbers of 0 or more")
                                     : concat("up to ", shard_.num_positions, " samples of an epoch"),
                     .got = concat(state.samples_seen, " samples of epoch ", state.epoch),
                     .hint = "It was written for another data set."});
  }
  if (state.world_size > 0 && state.world_size != communicator_->size()) {
    logger_->warning(concat("a data loader goes on in epoch ", state.epoch, " after ", state.samples_seen,
                            " samples with world size ", state.world_size, " -> ", communicator_->size(),
                            ": what is left is shared out anew, each sample once, in other batches"));
  }
  // An order that has begun goes on, whatever seed this run would have drawn.
  if (state.seed && seed_ && *state.seed != *seed_) shuffle_by(*state.seed, shard_.num_positions);
  set_epoch(state.epoch);
  // What is left is shared out anew; after whole rounds of this job that goes on exactly as it would have.
  offset_ = state.samples_seen;
  if (options_.batch_sampler != nullptr) plan(epoch_, offset_);  // throws if the state does not fit
}

LoaderPass::LoaderPass(std::shared_ptr<LoaderCore> core)
    : core_(std::move(core)),
      epoch_(core_->epoch()),
      offset_(core_->offset_),
      plan_(core_->plan(epoch_, offset_)),
      progress_(std::make_shared<LoaderProgress>()) {
  progress_->sizes_vary = core_->options().batch_sampler != nullptr && !core_->shard().split_batches;
  first_ = plan_ ? std::min(core_->next_batch_, plan_->num_batches(core_->shard().rank)) : core_->next_batch_;
  next_ = first_;
  core_->set_epoch(epoch_ + 1);
  core_->running_ = {.epoch = epoch_,
                     .samples_seen = offset_,
                     .world_size = core_->communicator().size(),
                     .seed = core_->seed_};
  core_->running_is_partial_ = true;
  core_->active()->push(progress_);
}

LoaderPass::~LoaderPass() {
  core_->active()->remove(progress_.get());
}

int64_t LoaderPass::samples_to_skip() const {
  return offset_ + first_ * core_->shard().round_size();
}

void LoaderPass::hand_out(int64_t batches_left, int64_t remainder) {
  core_->active()->touch(progress_.get());
  progress_->batches_left = batches_left;
  progress_->remainder = remainder;
  ++next_;
  // After the last batch nothing of this epoch is left to go on with.
  if (batches_left == 1) {
    core_->running_.epoch = epoch_ + 1;
    core_->running_.samples_seen = 0;
  } else {
    core_->running_.samples_seen =
        plan_ ? plan_->samples_before(next_) : offset_ + next_ * core_->shard().round_size();
  }
}

void LoaderPass::finish() {
  progress_->batches_left = 0;
  core_->running_is_partial_ = false;
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
