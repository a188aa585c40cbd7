#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/data/batch_shard.h"
#include "accelerate/data/iterable_dataset.h"

namespace accelerate::detail {

/// Reads a stream in rounds of all ranks' batches and cuts them as HF Accelerate does: IterableDatasetShard,
/// or DataLoaderDispatcher if `shard.dispatch`. A short last round is completed from the epoch's start
/// (dispatched: only as far as needed for equal parts), or left out with drop_last; one rank alone keeps it
/// short. One thread.
template <StreamedDataset Dataset>
class StreamReader {
 public:
  using RawItem = typename Dataset::RawItem;

  /// Leaves out the first `samples_to_skip` items of `epoch`.
  StreamReader(Dataset dataset, const BatchShard& shard, int64_t epoch, int64_t samples_to_skip)
      : dataset_(std::move(dataset)), shard_(shard), epoch_(epoch), samples_to_skip_(samples_to_skip) {}

  /// The items of the next batch: of this rank, or if dispatching those of rank 0, 1, ... in turn.
  std::optional<std::vector<RawItem>> next_batch() {
    if (!begun_) begin();
    if (parts_.empty()) read_round();
    if (parts_.empty()) return std::nullopt;
    std::vector<RawItem> part = std::move(parts_.front());
    parts_.pop_front();
    return part;
  }

  /// Items of the last round that are no repeats, where some are; else 0. Valid once the end is reached.
  int64_t remainder() const { return remainder_; }

 private:
  void begin() {
    begun_ = true;
    dataset_.begin_epoch(epoch_);
    // The first round is read even where the source can skip: the last one may be completed from it.
    const bool completes = shard_.world_size > 1 && !shard_.drop_last;
    const int64_t to_read = Dataset::kSkips
                                ? (completes ? std::min(shard_.round_size(), samples_to_skip_) : 0)
                                : samples_to_skip_;
    for (int64_t i = 0; i < to_read; ++i) {
      std::optional<RawItem> item = dataset_.next();
      if (!item) return;
      if (completes && i < shard_.round_size()) first_.push_back(std::move(*item));
    }
    if constexpr (Dataset::kSkips) {
      if (samples_to_skip_ > to_read) dataset_.skip(samples_to_skip_ - to_read);
    }
  }

  void read_round() {
    const auto round_size = static_cast<size_t>(shard_.round_size());
    std::vector<RawItem> items;
    while (!ended_ && items.size() < round_size) {
      std::optional<RawItem> item = dataset_.next();
      ended_ = !item;
      if (item) items.push_back(std::move(*item));
    }
    const bool is_short = items.size() < round_size;
    if (items.empty() || (is_short && shard_.drop_last)) return;
    if (shard_.world_size == 1) {
      parts_.push_back(std::move(items));
      return;
    }
    if (first_.empty()) first_ = items;
    if (is_short) complete(items);
    const auto share = static_cast<int64_t>(items.size()) / shard_.world_size;
    for (int64_t rank = 0; rank < shard_.world_size; ++rank) {
      if (!shard_.dispatch && rank != shard_.rank) continue;
      parts_.emplace_back(items.begin() + rank * share, items.begin() + (rank + 1) * share);
    }
  }

  void complete(std::vector<RawItem>& items) {
    const auto world_size = static_cast<size_t>(shard_.world_size);
    const size_t wanted = shard_.dispatch ? (items.size() + world_size - 1) / world_size * world_size
                                          : static_cast<size_t>(shard_.round_size());
    if (wanted > items.size()) remainder_ = static_cast<int64_t>(items.size());
    for (size_t i = 0; items.size() < wanted; ++i) items.push_back(first_[i % first_.size()]);
  }

  Dataset dataset_;
  BatchShard shard_;
  int64_t epoch_;
  int64_t samples_to_skip_;
  bool begun_ = false;
  bool ended_ = false;
  std::vector<RawItem> first_;  // the epoch's first round, to complete the last one from
  std::deque<std::vector<RawItem>> parts_;
  int64_t remainder_ = 0;
};

}  // namespace accelerate::detail
