#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accelerate/comm/shm/arena.h"
#include "accelerate/comm/shm/barrier.h"
#include "accelerate/comm/shm/reduce.h"
#include "accelerate/core/error.h"
#include "accelerate/core/shared_memory.h"

namespace accelerate::shm {

/// The ranks are about to run different operations: an error on every one of them, and the group can go on.
class Disagreement : public Error {
 public:
  using Error::Error;
};

struct GroupOptions {
  int rank = 0;
  int size = 1;
  /// What the names of further segments hold; letters, digits, '-', '_', '.'.
  std::string job_id = "shm";
  /// Spin before sleeping; only where each rank has a core.
  bool spin = false;
  size_t slot_bytes = 0;  ///< 0: Layout's default
};

/// The collectives of one group of ranks on one machine over plain memory. All are collective over the group
/// and called in the same order; what a rank is about to do is compared by all, so that different operations,
/// counts or types are an error on every rank and no hang. Not thread-safe: one thread a rank at a time.
///
/// Every method waits at most `timeout` for the others at each step, and throws PeerError naming those that
/// did not come; the group is then of no further use. Buffers of different arguments don't overlap, but an
/// output may be the same as this rank's own input.
class Group {
 public:
  using Timeout = std::chrono::milliseconds;

  /// Bytes that the segment of such a group needs.
  static size_t segment_bytes(const GroupOptions& options);

  /// Enters the group over a segment that is zero or in which only other ranks of this group have written.
  /// Ranks that are threads may share one mapping.
  Group(std::shared_ptr<SharedMemoryMapping> segment, const GroupOptions& options);
  /// Tells the others that this rank has left.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }

  /// Returns once every rank has entered; first of all collectives.
  void meet(Timeout timeout);

  void barrier(Timeout timeout);
  /// Equal bits on all ranks. In place, without a copy, where every rank's data lie in the same arena.
  void all_reduce(void* data, size_t count, Element element, Reduction reduction, Timeout timeout);
  /// Only the root's data change.
  void reduce(void* data, size_t count, Element element, Reduction reduction, int root, Timeout timeout);
  /// inputs[r], count elements each, is what rank r gets its share of.
  void reduce_scatter(void* output, std::span<const void* const> inputs, size_t count, Element element,
                      Reduction reduction, Timeout timeout);
  void broadcast(void* data, size_t bytes, int root, Timeout timeout);
  void all_gather(const void* input, std::span<void* const> outputs, size_t bytes, Timeout timeout);
  /// `outputs` is looked at on the root only.
  void gather(const void* input, std::span<void* const> outputs, size_t bytes, int root, Timeout timeout);
  /// `inputs` is looked at on the root only.
  void scatter(void* output, std::span<const void* const> inputs, size_t bytes, int root, Timeout timeout);
  /// Sizes may differ from pair to pair; what p sends to q must be what q expects from p.
  void all_to_all(std::span<const void* const> inputs, std::span<const uint64_t> input_bytes,
                  std::span<void* const> outputs, std::span<const uint64_t> output_bytes, Timeout timeout);

  /// An arena with the largest `region_bytes` that any rank asks for. Null on all ranks, with the reason,
  /// where the machine has no room for it.
  std::shared_ptr<Arena> make_arena(size_t region_bytes, std::string* problem, Timeout timeout);

  /// Makes an arena of a mapping of all ranks' regions, which the caller has brought to all ranks.
  std::shared_ptr<Arena> adopt_arena(std::shared_ptr<SharedMemoryMapping> mapping, size_t region_bytes);

  Peers& peers() { return peers_; }
  std::byte* channel(int source, int destination) const {
    return segment_->data() + layout_.channel(source, destination);
  }
  size_t channel_bytes() const { return layout_.channel_bytes(); }

 private:
  std::byte* slot(uint32_t parity, int rank) const { return segment_->data() + layout_.slot(parity, rank); }
  uint32_t next_parity() const { return (barrier_.passed() + 1) & 1; }
  uint32_t parity() const { return barrier_.passed() & 1; }

  void wait(const char* operation, Timeout timeout);
  void enter(const Call& call, Timeout timeout);
  /// `copy_in(at, size, slot)` fills this rank's slot with the piece [at, at + size) of `total`, and
  /// `copy_out(at, size, parity)` takes it out of the slots of `parity`.
  template <class CopyIn, class CopyOut>
  void pump(const Call& call, size_t total, size_t chunk, const CopyIn& copy_in, const CopyOut& copy_out,
            Timeout timeout);
  void reduce_in_slots(const Call& call, std::byte* data, Timeout timeout);
  bool reduce_in_arena(const Call& call, Timeout timeout);
  std::shared_ptr<Arena> find_arena(const void* data, size_t bytes, uint64_t* offset);
  size_t share_bytes(size_t element_size) const;
  void check_reduction(Element element, Reduction reduction) const;
  void check_root(int root) const;
  [[noreturn]] void report_difference(uint32_t parity) const;

  std::shared_ptr<SharedMemoryMapping> segment_;
  GroupOptions options_;
  Layout layout_;
  Header& header_;
  Peers peers_;
  Barrier barrier_;
  std::vector<std::weak_ptr<Arena>> arenas_;
  uint64_t arenas_made_ = 0;
  bool failed_ = false;
};

}  // namespace accelerate::shm
