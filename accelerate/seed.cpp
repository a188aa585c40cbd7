#include "accelerate/seed.h"

#include <ATen/Context.h>

namespace accelerate {

void set_seed(uint64_t seed, bool device_specific, int process_index) {
  at::manual_seed(device_specific ? seed + static_cast<uint64_t>(process_index) : seed);
}

}  // namespace accelerate
