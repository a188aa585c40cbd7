#pragma once

#include <cstddef>
#include <memory>

namespace accelerate {

/// While it lives, the CPU tensors that its thread makes lie where the ranks of a group reduce them in place;
/// tensors for which there is no room lie where they always do. Ends on the thread that began it. The memory
/// goes with the last tensor in it.
class BucketMemory {
 public:
  virtual ~BucketMemory() = default;
};

/// What a back end offers that has such memory.
class BucketMemorySource {
 public:
  virtual ~BucketMemorySource() = default;
  /// Collective. Room for `bytes` a rank, or null on all ranks if there is none.
  virtual std::unique_ptr<BucketMemory> make_bucket_memory(size_t bytes) = 0;
};

}  // namespace accelerate
