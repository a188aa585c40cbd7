#include "support/test_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <cstring>

namespace accelerate::test {
namespace {

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kTestDevices> current_stream{};
constexpr c10::StreamId kOtherStream = 1;

class TestAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : std::malloc(bytes);
    return {data, data, &std::free, c10::Device(c10::kPrivateUse1, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

class TestGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, current_device}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, current_stream.at(static_cast<size_t>(device.index())));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, kOtherStream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_stream.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kTestDevices; }
  void record(void**, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    stream_use().events += stream.id() == kOtherStream ? 1 : 0;
  }
  void block(void*, const c10::Stream& stream) const override {
    stream_use().waits += stream.id() == 0 ? 1 : 0;
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& stream) const override {
    stream_use().notes += stream.id() == 0 ? 1 : 0;
  }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryEvent(void*) const override { return true; }
};

struct TestHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr data = storage.allocator()->allocate(bytes);
    if (data.get() != nullptr && storage.data() != nullptr) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

TestAllocator& allocator() {
  static TestAllocator instance;
  return instance;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(c10::kPrivateUse1)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(), kKeys,
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(c10::kPrivateUse1)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           &allocator(), kKeys, dtype.value_or(at::kFloat));
}

// The same bytes as a CPU tensor, for the copies below only.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const bool beside = !to.is_cpu() && current_stream.at(static_cast<size_t>(to.device().index())) != 0;
  stream_use().copies_beside += beside ? 1 : 0;
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) const_cast<at::Tensor&>(to).resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), C10_AS_INTARRAYREF_SLOW(size), std::nullopt);
  return self;
}

void to_cpu_and_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&to_cpu_and_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("resize_", &resize);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, TestGuard)

}  // namespace

StreamUse& stream_use() {
  thread_local StreamUse use;
  return use;
}

void register_test_device() {
  static const bool once = [] {
    c10::register_privateuse1_backend("testdevice");
    static TestHooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(c10::kPrivateUse1, &allocator());
    return true;
  }();
  (void)once;
}

}  // namespace accelerate::test
