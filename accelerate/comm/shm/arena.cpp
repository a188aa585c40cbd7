#include "accelerate/comm/shm/arena.h"

#include "accelerate/comm/shm/layout.h"

namespace accelerate::shm {

void* Arena::allocate(size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > region_bytes_ - used_bytes_) return nullptr;
  void* piece = region(static_cast<int>(rank_)) + used_bytes_;
  used_bytes_ = std::min(region_bytes_, used_bytes_ + Layout::round_up(size_bytes, kCacheLine));
  return piece;
}

bool Arena::contains(const void* data, size_t size_bytes, uint64_t* offset) const {
  const auto begin = reinterpret_cast<uintptr_t>(region(static_cast<int>(rank_)));
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address < begin || address - begin > region_bytes_ || region_bytes_ - (address - begin) < size_bytes)
    return false;
  *offset = address - begin;
  return true;
}

}  // namespace accelerate::shm
