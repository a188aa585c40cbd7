#include "accelerate/checkpoint/snapshot_buffer.h"

#include <ATen/Functions.h>
#include <sys/mman.h>

#include <cerrno>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr size_t kAlignBytes = 64;

}  // namespace

struct SnapshotBuffer::Memory {
  Memory(size_t size, bool wants_pinned) : size_bytes(size), pinned(wants_pinned) {
    if (size == 0) return;
    if (pinned) {
      pinned_bytes =
          at::empty({static_cast<int64_t>(size)}, at::TensorOptions(at::kByte).pinned_memory(true));
      data = static_cast<std::byte*>(pinned_bytes.mutable_data_ptr());
      return;
    }
    void* address =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      throw CheckpointError({.what = concat("memory for a copy of the state, ", size, " bytes"),
                             .got = errno_text(errno),
                             .hint = "Save without SaveStateOptions::async."});
    }
    ::madvise(address, size, MADV_HUGEPAGE);  // fewer page faults at the first copy
    data = static_cast<std::byte*>(address);
  }
  ~Memory() {
    if (data != nullptr && !pinned) ::munmap(data, size_bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t size_bytes;
  bool pinned;
  std::byte* data = nullptr;
  at::Tensor pinned_bytes;
};

SnapshotBuffer::SnapshotBuffer() = default;
SnapshotBuffer::~SnapshotBuffer() = default;

size_t SnapshotBuffer::room_for(const at::Tensor& tensor) {
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

void SnapshotBuffer::reset(size_t total_bytes, bool pinned) {
  used_bytes_ = 0;
  if (memory_ && memory_->size_bytes >= total_bytes && memory_->pinned == pinned) return;
  memory_.reset();  // before the new one, so that both are never there
  memory_ = std::make_shared<Memory>(total_bytes, pinned);
}

at::Tensor SnapshotBuffer::copy(const at::Tensor& tensor) {
  const size_t room = room_for(tensor);
  if (used_bytes_ + room > memory_->size_bytes) throw Error({.what = "a snapshot grew while it was taken"});
  at::Tensor out = at::from_blob(
      memory_->data + used_bytes_, tensor.sizes(), [memory = memory_](void*) {},
      at::TensorOptions(tensor.scalar_type()));
  used_bytes_ += room;
  out.copy_(tensor.detach());
  return out;
}

void SnapshotBuffer::clear() {
  memory_.reset();
  used_bytes_ = 0;
}

}  // namespace accelerate::detail
