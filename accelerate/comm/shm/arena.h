#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "accelerate/core/shared_memory.h"

namespace accelerate::shm {

/// Memory of all ranks side by side, in which tensors can live so that the others reduce them where they are.
/// Each rank hands out pieces of its own region; nothing is given back until the arena goes. One thread at a
/// time.
class Arena {
 public:
  Arena(std::shared_ptr<SharedMemoryMapping> mapping, uint64_t id, int rank, size_t region_bytes)
      : mapping_(std::move(mapping)),
        id_(id),
        rank_(static_cast<size_t>(rank)),
        region_bytes_(region_bytes) {}

  /// Equal on all ranks, never 0.
  uint64_t id() const { return id_; }
  /// The memory of `rank`.
  std::byte* region(int rank) const { return mapping_->data() + static_cast<size_t>(rank) * region_bytes_; }

  /// A piece of this rank's region on a cache line of its own, or null when there is no room.
  void* allocate(size_t size_bytes);
  /// True if the bytes lie in this rank's region; `offset` is then where.
  bool contains(const void* data, size_t size_bytes, uint64_t* offset) const;
  size_t used_bytes() const { return used_bytes_; }
  size_t region_bytes() const { return region_bytes_; }

 private:
  std::shared_ptr<SharedMemoryMapping> mapping_;
  uint64_t id_;
  size_t rank_;
  size_t region_bytes_;
  size_t used_bytes_ = 0;
};

}  // namespace accelerate::shm
