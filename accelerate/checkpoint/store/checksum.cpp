#include "accelerate/checkpoint/store/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace accelerate {

struct Xxh3::State {
  XXH3_state_t value;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->value);
}
Xxh3::~Xxh3() = default;
Xxh3::Xxh3(Xxh3&&) noexcept = default;
Xxh3& Xxh3::operator=(Xxh3&&) noexcept = default;

void Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->value, bytes.data(), bytes.size());
}

uint64_t Xxh3::digest() const {
  return XXH3_64bits_digest(&state_->value);
}

uint64_t Xxh3::of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::string checksum_text(uint64_t checksum) {
  std::string out(16, '0');
  for (size_t i = 0; i < out.size(); ++i) out[i] = "0123456789abcdef"[(checksum >> (60 - 4 * i)) & 15];
  return out;
}

std::optional<uint64_t> parse_checksum(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t out = 0;
  for (const char c : text) {
    const size_t digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    out = out << 4 | digit;
  }
  return out;
}

}  // namespace accelerate
