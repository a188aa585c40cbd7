#pragma once

#include <string>

#include "accelerate/core/strings.h"

namespace accelerate::detail {

/// "${VAR}", "$VAR", "{{ x }}", "<your ip>", "xx.xx.xx.xx": somebody has yet to fill the value in.
inline bool is_placeholder(const std::string& text) {
  if (text.find("${") != std::string::npos || text.find("$(") != std::string::npos) return true;
  if (text.find("{{") != std::string::npos || text.starts_with("$")) return true;
  if (text.starts_with("<") && text.ends_with(">")) return true;
  const std::string letters = to_lower(text);
  return letters.find('.') != std::string::npos && letters.find('x') != std::string::npos &&
         letters.find_first_not_of("x.") == std::string::npos;
}

}  // namespace accelerate::detail
