#pragma once

#include <cstdint>
#include <random>

namespace accelerate::detail {

/// The numbers that numpy.random.RandomState(seed).randint(1_000_000_000) gives, from which PyTorch's
/// PowerSGD seeds its random matrices: draws of a Mersenne Twister cut to 30 bits, those too large left out.
/// Local.
class PowerSgdSeeds {
 public:
  explicit PowerSgdSeeds(uint32_t seed) : engine_(seed) {}

  uint64_t next() {
    constexpr uint32_t kEnd = 1'000'000'000;
    constexpr uint32_t kMask = (1U << 30U) - 1;
    for (;;) {
      const uint32_t value = static_cast<uint32_t>(engine_()) & kMask;
      if (value < kEnd) return value;
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace accelerate::detail
