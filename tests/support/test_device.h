#pragma once

namespace accelerate::test {

/// Registers a device with kTestDevices indices under torch's PrivateUse1 key (named "testdevice:0", ...):
/// memory of its own that ordinary CPU kernels refuse, and every operation done by copying to the CPU and
/// back. What works on it does not secretly assume the CPU. Call once or often, before the first use.
void register_test_device();

inline constexpr int kTestDevices = 4;

/// What this thread did on the device's streams: every device has a default stream and one more.
struct StreamUse {
  int copies_beside = 0;  ///< copies to the device that were not on the default stream
  int events = 0;         ///< recorded on the other stream
  int waits = 0;          ///< of the default stream for such an event
  int notes = 0;          ///< memory that was said to be used by the default stream too
};
StreamUse& stream_use();

}  // namespace accelerate::test
