#include "accelerate/data/batch_shard.h"

#include <algorithm>

namespace accelerate {
namespace {

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> out;
  for (int64_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

int64_t positions_left(const BatchShard& shard) {
  return std::max<int64_t>(0, shard.num_positions - shard.offset);
}

int64_t source_batches(const BatchShard& shard) {
  const int64_t full = positions_left(shard) / shard.batch_size;
  return full + (positions_left(shard) % shard.batch_size > 0 && !shard.drop_last ? 1 : 0);
}

}  // namespace

int64_t BatchShard::round_size() const {
  return split_batches ? batch_size : batch_size * world_size;
}

int64_t BatchShard::num_batches() const {
  if (dispatch) {
    const int64_t left = positions_left(*this);
    return drop_last ? left / round_size() : (left + round_size() - 1) / round_size();
  }
  const int64_t batches = source_batches(*this);
  if (split_batches) {
    const int64_t last = positions_left(*this) % batch_size;
    const int64_t share = batch_size / world_size;
    // Without completion a short last batch may hold nothing for the later ranks.
    const bool nothing_in_last = last > 0 && !drop_last && !even_batches && last <= rank * share;
    return nothing_in_last ? batches - 1 : batches;
  }
  const int64_t rounds =
      positions_left(*this) / (batch_size * world_size);  // in which every rank gets a full batch
  const int64_t tail = batches - rounds * world_size;
  if (tail == 0 || drop_last) return rounds;
  return rounds + (even_batches || rank < tail ? 1 : 0);
}

std::vector<int64_t> BatchShard::dispatched_positions(int64_t k) const {
  const int64_t begin = offset + k * round_size();
  const int64_t end = std::min(begin + round_size(), num_positions);
  const int64_t share = (end - begin + world_size - 1) / world_size;
  std::vector<int64_t> out;
  for (int64_t position = begin + rank * share; position < begin + (rank + 1) * share; ++position) {
    out.push_back(position < end ? position : (position - end) % num_positions);
  }
  return out;
}

std::vector<int64_t> BatchShard::positions(int64_t k) const {
  if (dispatch) return dispatched_positions(k);
  const int64_t share = split_batches ? batch_size / world_size : batch_size;
  const int64_t round_size = share * world_size;  // positions that all ranks see in one round
  const int64_t begin = offset + k * round_size;
  const int64_t first = begin + rank * share;
  if (begin + round_size <= num_positions) return range(first, first + share);
  if (!even_batches) return range(std::min(first, num_positions), std::min(first + share, num_positions));
  // The round is completed from the epoch's start.
  const int64_t wrap = std::min(num_positions, round_size);
  std::vector<int64_t> out;
  for (int64_t position = first; position < first + share; ++position) {
    out.push_back(position < num_positions ? position : (position - num_positions) % wrap);
  }
  return out;
}

std::vector<std::vector<int64_t>> shard_batches(const std::vector<std::vector<int64_t>>& batches,
                                                int64_t world_size, int64_t rank, bool even_batches,
                                                int64_t offset) {
  std::vector<std::vector<int64_t>> out;
  const auto count = static_cast<int64_t>(batches.size());
  const int64_t rounds = (count - offset) / world_size;
  const auto at = [&](int64_t i) { return batches[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < rounds; ++i) out.push_back(at(offset + i * world_size + rank));
  const int64_t tail = count - offset - rounds * world_size;
  if (tail == 0) return out;
  if (rank < tail) {
    out.push_back(at(offset + rounds * world_size + rank));
  } else if (even_batches) {
    out.push_back(at((rank - tail) % std::min(count, world_size)));
  }
  return out;
}

std::vector<int64_t> part_of_batch(const std::vector<int64_t>& batch, int64_t parts, int64_t part) {
  const auto size = static_cast<int64_t>(batch.size());
  const int64_t share = (size + parts - 1) / parts;
  std::vector<int64_t> out;
  for (int64_t i = part * share; i < (part + 1) * share; ++i) {
    out.push_back(batch[static_cast<size_t>(i % size)]);
  }
  return out;
}

}  // namespace accelerate
