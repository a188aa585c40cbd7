#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <vector>

namespace accelerate::detail {

/// Brings batches to the rank's device. On devices with streams the copy runs on one of its own, beside the
/// computation, so that the next batch travels while the loop works on the current one. One thread.
class DeviceTransfer {
 public:
  /// What end() waits for.
  using Ticket = std::shared_ptr<c10::Event>;

  /// `own_stream`: copy beside the computation where the device can; `pin`: through pinned memory.
  DeviceTransfer(at::Device device, bool own_stream, bool pin);

  /// True if begin() returns before the copy is done.
  bool overlaps() const { return stream_.has_value(); }
  /// Replaces every tensor by its copy on the device, which may be used after end() with the returned ticket.
  Ticket begin(std::vector<at::Tensor>& tensors);
  /// Lets the current stream wait for the copies.
  void end(const Ticket& ticket, const std::vector<at::Tensor>& tensors) const;

 private:
  at::Device device_;
  bool pin_;
  std::optional<c10::Stream> stream_;
};

}  // namespace accelerate::detail
