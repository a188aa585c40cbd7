#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

namespace accelerate::detail {

/// Host memory that tensors are copied to while training goes on, and that is kept for the next time: a
/// fresh allocation of this size costs more than the copy. Pinned where the tensors are on a CUDA device.
class SnapshotBuffer {
 public:
  SnapshotBuffer();
  ~SnapshotBuffer();

  /// Makes room for tensors of so many bytes together, and gives all room up that was handed out.
  void reset(size_t total_bytes, bool pinned);
  /// A contiguous copy of `tensor` on the CPU in this memory; reset() must have made room. It keeps the
  /// memory alive.
  at::Tensor copy(const at::Tensor& tensor);
  /// Bytes that `tensor` takes up.
  static size_t room_for(const at::Tensor& tensor);
  /// Gives the memory back, once no copy is left.
  void clear();

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;
  size_t used_bytes_ = 0;
};

}  // namespace accelerate::detail
