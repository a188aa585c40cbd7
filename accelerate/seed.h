#pragma once

#include <cstdint>

namespace accelerate {

/// Seeds torch's generators of all devices, as torch::manual_seed. Models built after it on every rank are
/// equal. With `device_specific`, rank `process_index` gets seed + process_index, for noise that should
/// differ between ranks.
void set_seed(uint64_t seed, bool device_specific = false, int process_index = 0);

}  // namespace accelerate
