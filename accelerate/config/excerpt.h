#pragma once

#include <cstddef>
#include <string>

#include "accelerate/core/strings.h"

namespace accelerate::detail {

/// A text from a file as a message shows it: in one line, short, without control characters.
inline std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = trim(text);
  if (out.size() > kLongest) out = out.substr(0, kLongest) + "...";
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace accelerate::detail
