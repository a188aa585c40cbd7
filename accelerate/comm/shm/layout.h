#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace accelerate::shm {

// Note [The segment of a group]
// One segment a group of ranks, all zero at first:
//   Header       the barrier's words
//   RankBlock[]  one a rank: who it is, how far it has come, what it is about to do
//   slots        [2][ranks][slot_bytes]: data on its way between ranks
//   channels     [ranks][ranks]: a ring for the messages of each ordered pair, see Note [Messages]
//
// Two buffers: what is written between barriers b - 1 and b goes to the slots of parity b % 2, and may be
// read by every rank between barriers b and b + 1. A rank writes the next time to that parity after barrier
// b + 1, when nobody reads it any more, so that one barrier a chunk is enough. Ranks write their own slots
// only; the one exception, the all-reduce, says why it may.

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kPage = 4096;

/// What a rank is about to do, compared by all at the first barrier of every operation.
struct Call {
  uint32_t operation = 0;
  uint32_t element = 0;
  uint32_t reduction = 0;
  int32_t root = 0;
  uint64_t count = 0;
  // May differ from rank to rank:
  uint64_t arena = 0;   ///< number of the arena that holds the data, 0 for none
  uint64_t offset = 0;  ///< where in the rank's region of it

  bool same_operation(const Call& other) const {
    return operation == other.operation && element == other.element && reduction == other.reduction &&
           root == other.root && count == other.count;
  }
};

enum class RankState : uint32_t { kAbsent, kHere, kLeft, kFailed };

struct Header {
  alignas(kCacheLine) std::atomic<uint32_t> arrivals;  ///< of all barriers so far
  alignas(kCacheLine) std::atomic<uint32_t> epoch;     ///< barriers completed; what waiters sleep on
  std::atomic<uint32_t> sleepers;
};

struct RankBlock {
  alignas(kCacheLine) std::atomic<uint32_t> arrived;  ///< barriers that this rank has come to
  std::atomic<RankState> state;
  std::atomic<uint32_t> operations;               ///< that it has begun
  int32_t pid;                                    ///< set before kHere, as is the next
  uint64_t start_ticks;                           ///< when that process began: a process id may be used again
  alignas(kCacheLine) std::array<Call, 2> calls;  ///< by parity, as slots
  alignas(kCacheLine) std::atomic<uint32_t> doorbell;  ///< rung by peers that changed one of its channels
};

/// Where what lies.
class Layout {
 public:
  /// `slot_bytes` 0 takes the default: 1 MiB, less where many ranks would need more than 64 MiB together.
  explicit Layout(int ranks, size_t slot_bytes = 0)
      : ranks_(static_cast<size_t>(ranks)), slot_bytes_(round_up(slot_bytes, kPage)) {
    if (slot_bytes_ == 0) {
      slot_bytes_ = kLargestSlot;
      while (slot_bytes_ > kSmallestSlot && 2 * ranks_ * slot_bytes_ > kSlotsTogether) slot_bytes_ /= 2;
    }
    channel_bytes_ = kLargestChannel;
    while (channel_bytes_ > kPage && ranks_ * ranks_ * channel_bytes_ > kChannelsTogether)
      channel_bytes_ /= 2;
  }

  size_t slot_bytes() const { return slot_bytes_; }
  size_t channel_bytes() const { return channel_bytes_; }
  size_t rank_block(int rank) const {
    return round_up(sizeof(Header), kCacheLine) + static_cast<size_t>(rank) * sizeof(RankBlock);
  }
  size_t slot(uint32_t parity, int rank) const {
    return slots() + (parity * ranks_ + static_cast<size_t>(rank)) * slot_bytes_;
  }
  size_t channel(int source, int destination) const {
    return channels() +
           (static_cast<size_t>(source) * ranks_ + static_cast<size_t>(destination)) * channel_bytes_;
  }
  size_t size_bytes() const { return channels() + ranks_ * ranks_ * channel_bytes_; }

  static constexpr size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }

 private:
  static constexpr size_t kLargestSlot = size_t{1} << 20;
  static constexpr size_t kSmallestSlot = size_t{1} << 16;
  static constexpr size_t kSlotsTogether = size_t{64} << 20;
  static constexpr size_t kLargestChannel = size_t{1} << 16;
  static constexpr size_t kChannelsTogether = size_t{8} << 20;

  size_t slots() const { return round_up(rank_block(static_cast<int>(ranks_)), kPage); }
  size_t channels() const { return slots() + 2 * ranks_ * slot_bytes_; }

  size_t ranks_;
  size_t slot_bytes_;
  size_t channel_bytes_ = 0;
};

}  // namespace accelerate::shm
