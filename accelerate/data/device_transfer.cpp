#include "accelerate/data/device_transfer.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {
namespace {

std::optional<c10::Stream> stream_of_its_own(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  try {
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  } catch (const c10::Error&) {
    return std::nullopt;  // a device without streams
  }
}

}  // namespace

DeviceTransfer::DeviceTransfer(at::Device device, bool own_stream, bool pin)
    : device_(device), pin_(pin), stream_(own_stream ? stream_of_its_own(device) : std::nullopt) {}

DeviceTransfer::Ticket DeviceTransfer::begin(std::vector<at::Tensor>& tensors) {
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  for (at::Tensor& tensor : tensors) {
    if (tensor.device() == device_) continue;
    if (pin_ && tensor.is_cpu() && !tensor.is_pinned()) tensor = tensor.pin_memory();
    // torch keeps pinned memory from being used again until the copy out of it is done.
    tensor = tensor.to(device_, /*non_blocking=*/pin_);
  }
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(*stream_);
  return event;
}

void DeviceTransfer::end(const Ticket& ticket, const std::vector<at::Tensor>& tensors) const {
  if (!ticket) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream current = guard.getStream(device_);
  ticket->block(current);
  // The memory belongs to the copying stream; its allocator must know that the loop's stream uses it too.
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() == device_) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
  }
}

}  // namespace accelerate::detail
