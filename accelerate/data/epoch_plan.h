#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/data/batch_shard.h"
#include "accelerate/data/sampler.h"

namespace accelerate::detail {

/// Which samples each rank sees in each batch of one epoch. Immutable, so that threads may ask at once.
class EpochPlan {
 public:
  virtual ~EpochPlan() = default;
  /// Batches of rank `rank`.
  virtual int64_t num_batches(int64_t rank) const = 0;
  /// Sample numbers of batch `k` of rank `rank`.
  virtual std::vector<int64_t> indices(int64_t k, int64_t rank) const = 0;
  /// Samples that all ranks together have been given before batch `k`, repeats not counted.
  virtual int64_t samples_before(int64_t k) const = 0;
  /// Samples of round `k` that are no repeats, where some are; else 0.
  virtual int64_t remainder(int64_t k) const = 0;
};

/// A sampler's order cut into batches.
std::unique_ptr<EpochPlan> plan_epoch(const BatchShard& shard, std::vector<int64_t> order);

/// A batch sampler's batches. With `split_batches` every rank gets a part of each batch, else every
/// `world_size`th batch. The first `samples_seen` samples are left out; they must be whole batches.
/// @throws DataError otherwise.
struct BatchSplit {
  int64_t world_size = 1;
  bool split_batches = false;
  bool even_batches = true;
};
std::unique_ptr<EpochPlan> plan_epoch(const BatchSplit& split, std::vector<std::vector<int64_t>> batches,
                                      int64_t samples_seen);

}  // namespace accelerate::detail
