#pragma once

namespace accelerate::test {

/// Registers a device with kTestDevices indices under torch's PrivateUse1 key (named "testdevice:0", ...):
/// memory of its own that ordinary CPU kernels refuse, and every operation done by copying to the CPU and
/// back. What works on it does not secretly assume the CPU. Call once or often, before the first use.
void register_test_device();

inline constexpr int kTestDevices = 4;

}  // namespace accelerate::test
