#pragma once

#include <cstdint>
#include <vector>

namespace accelerate {

// Note [Order of batches]
// An epoch visits positions 0..n-1 of the sampler's order. They are cut into source batches B of b
// consecutive positions (a short last one is removed by drop_last). What rank r of W sees, as HF Accelerate's
// BatchSamplerShard:
//   split_batches off   Source batch iW+r in round i, for all rounds that are complete with full batches.
//   What is left,
//                       the tail, is laid out flat; with even_batches it is completed to W*b positions by
//                       repeating from the epoch's start, and rank r takes its b of them. Without, rank r
//                       takes tail batch r, if there is one.
//   split_batches on    b must be a multiple of W; every rank takes its b/W positions of each source batch. A
//   short last
//                       batch is completed from the epoch's start (even_batches), or the ranks share what
//                       there is.
//   dispatch            The main process reads rounds of W*b positions (b with split_batches) and deals each
//   out in W equal
//                       parts. The last round may be shorter; where it does not divide by W it is completed
//                       with the first positions of the epoch, or left out whole with drop_last.
// All of it is arithmetic: batch k of a rank needs none of the batches before it.

/// Which part of an epoch one rank sees.
struct BatchShard {
  int64_t num_positions = 0;   ///< n: positions in the epoch
  int64_t batch_size = 1;      ///< b: per rank, or in all with split_batches
  int64_t world_size = 1;      ///< W
  int64_t rank = 0;            ///< r
  bool split_batches = false;  ///< the batch size is that of all ranks together
  bool even_batches = true;    ///< all ranks see equally many, equally large batches
  bool drop_last = false;      ///< leave out a last round that is not complete
  /// The main process deals rounds out, see above.
  bool dispatch = false;
  /// Positions at the start that are left out: they were seen before the job went on with another world size.
  int64_t offset = 0;

  /// Batches this rank sees.
  int64_t num_batches() const;
  /// Positions in batch `k`, 0 <= k < num_batches().
  std::vector<int64_t> positions(int64_t k) const;
  /// Positions that all ranks together see in one full round.
  int64_t round_size() const;

 private:
  std::vector<int64_t> dispatched_positions(int64_t k) const;
};

/// As above for source batches of any sizes (a user's batch sampler): the tail goes to the first ranks; with
/// `even_batches` the others get the first source batches again. The first `offset` source batches are left
/// out.
std::vector<std::vector<int64_t>> shard_batches(const std::vector<std::vector<int64_t>>& batches,
                                                int64_t world_size, int64_t rank, bool even_batches,
                                                int64_t offset = 0);

/// Part `part` of `parts` equal parts of a batch, completed from its start where it does not divide.
std::vector<int64_t> part_of_batch(const std::vector<int64_t>& batch, int64_t parts, int64_t part);

}  // namespace accelerate
