#pragma once

#include "accelerate/comm/bucket_memory.h"
#include "accelerate/comm/shm/arena.h"

namespace accelerate::detail {

// Note [Tensors in an arena]
// c10d's Reducer makes its buckets with at::empty(), so the only way to place them is torch's allocator for
// CPU memory. Ours stands in its place for as long as any BucketMemory lives in the process, and passes
// everything on but what a thread asks for that has a BucketMemory of its own: other threads, be they ranks
// or data workers, notice nothing. It is set with the lowest priority, so that an allocator that the user put
// in place with a higher one wins, and buckets then lie in ordinary memory, which costs time and nothing
// else.

/// Puts what this thread allocates into `arena`.
std::unique_ptr<BucketMemory> use_arena(std::shared_ptr<shm::Arena> arena);

}  // namespace accelerate::detail
