#include "accelerate/data/epoch_plan.h"

#include <algorithm>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

class SampledPlan final : public EpochPlan {
 public:
  SampledPlan(const BatchShard& shard, std::vector<int64_t> order)
      : shard_(shard), order_(std::move(order)) {}

  int64_t num_batches(int64_t rank) const override { return of_rank(rank).num_batches(); }
  std::vector<int64_t> indices(int64_t k, int64_t rank) const override {
    std::vector<int64_t> out = of_rank(rank).positions(k);
    for (int64_t& index : out) index = order_[static_cast<size_t>(index)];
    return out;
  }
  int64_t samples_before(int64_t k) const override {
    return std::min(shard_.offset + k * shard_.round_size(), shard_.num_positions);
  }
  int64_t remainder(int64_t k) const override {
    if (k + 1 != of_rank(0).num_batches()) return 0;
    if (shard_.drop_last || (!shard_.even_batches && !shard_.dispatch)) return 0;
    const int64_t last = std::max<int64_t>(0, shard_.num_positions - shard_.offset) % shard_.round_size();
    const bool divides = shard_.dispatch && last % shard_.world_size == 0;
    return divides ? 0 : last;
  }

 private:
  BatchShard of_rank(int64_t rank) const {
    BatchShard out = shard_;
    out.rank = rank;
    return out;
  }

  BatchShard shard_;
  std::vector<int64_t> order_;
};

// Source batches of any sizes.
class BatchedPlan final : public EpochPlan {
 public:
  BatchedPlan(const BatchSplit& split, const std::vector<std::vector<int64_t>>& batches,
              int64_t samples_seen) {
    const int64_t first = batch_after(batches, samples_seen);
    for (int64_t rank = 0; rank < split.world_size; ++rank) {
      ranks_.push_back(split.split_batches
                           ? parts(batches, split.world_size, rank, first)
                           : shard_batches(batches, split.world_size, rank, split.even_batches, first));
    }
    const auto count = static_cast<int64_t>(batches.size());
    const int64_t per_round = split.split_batches ? 1 : split.world_size;
    seen_.push_back(samples_seen);
    for (int64_t begin = first; begin < count; begin += per_round) {
      int64_t samples = 0;
      for (int64_t i = begin; i < std::min(begin + per_round, count); ++i) samples += size_of(batches, i);
      seen_.push_back(seen_.back() + samples);
      const bool repeats = split.split_batches ? samples % split.world_size != 0
                                               : split.even_batches && begin + per_round > count;
      remainders_.push_back(repeats ? samples : 0);
    }
  }

  int64_t num_batches(int64_t rank) const override {
    return static_cast<int64_t>(ranks_[static_cast<size_t>(rank)].size());
  }
  std::vector<int64_t> indices(int64_t k, int64_t rank) const override {
    return ranks_[static_cast<size_t>(rank)][static_cast<size_t>(k)];
  }
  int64_t samples_before(int64_t k) const override {
    return seen_[std::min(static_cast<size_t>(k), seen_.size() - 1)];
  }
  int64_t remainder(int64_t k) const override { return remainders_[static_cast<size_t>(k)]; }

 private:
  static int64_t size_of(const std::vector<std::vector<int64_t>>& batches, int64_t i) {
    return static_cast<int64_t>(batches[static_cast<size_t>(i)].size());
  }

  static int64_t batch_after(const std::vector<std::vector<int64_t>>& batches, int64_t samples) {
    int64_t seen = 0;
    for (int64_t i = 0; i <= static_cast<int64_t>(batches.size()); ++i) {
      if (seen == samples) return i;
      if (seen > samples || i == static_cast<int64_t>(batches.size())) break;
      seen += size_of(batches, i);
    }
    throw DataError({.what = "state of a data loader with a batch sampler",
                     .expected = "a number of samples that is whole batches of its epoch",
                     .got = std::to_string(samples),
                     .hint = "It was written for another data set or another batch sampler."});
  }

  static std::vector<std::vector<int64_t>> parts(const std::vector<std::vector<int64_t>>& batches,
                                                 int64_t world_size, int64_t rank, int64_t first) {
    std::vector<std::vector<int64_t>> out;
    for (auto i = static_cast<size_t>(first); i < batches.size(); ++i) {
      out.push_back(part_of_batch(batches[i], world_size, rank));
    }
    return out;
  }

  std::vector<std::vector<std::vector<int64_t>>> ranks_;
  std::vector<int64_t> seen_;  // samples before round k
  std::vector<int64_t> remainders_;
};

}  // namespace

std::unique_ptr<EpochPlan> plan_epoch(const BatchShard& shard, std::vector<int64_t> order) {
  return std::make_unique<SampledPlan>(shard, std::move(order));
}

std::unique_ptr<EpochPlan> plan_epoch(const BatchSplit& split, std::vector<std::vector<int64_t>> batches,
                                      int64_t samples_seen) {
  for (size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].empty()) {
      throw DataError({.what = concat("batch ", i, " of a batch sampler"), .got = "no samples"});
    }
  }
  return std::make_unique<BatchedPlan>(split, batches, samples_seen);
}

}  // namespace accelerate::detail
