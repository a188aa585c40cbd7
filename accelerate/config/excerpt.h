#pragma once

#include <cstddef>
#include <string>

#include "accelerate/core/strings.h"

namespace accelerate::detail {

/// A text from a file as a message shows it: in one line, short, without control characters (also those that
/// UTF-8 writes as two bytes) and not cut within a character.
inline std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = trim(text);
  if (out.size() > kLongest) {
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
    out = out.substr(0, end) + "...";
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned char>(out[i]);
    if (byte < 0x20 || byte == 0x7f) out[i] = '?';
    const auto next = i + 1 < out.size() ? static_cast<unsigned char>(out[i + 1]) : 0;
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) out.replace(i, 2, "?");
  }
  return out;
}

}  // namespace accelerate::detail
