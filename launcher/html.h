#pragma once

#include <string>
#include <string_view>

namespace accelerate::cli {

/// `text` as it must stand in HTML and SVG, in content and in quoted attributes alike. What is no UTF-8 and
/// what no document may hold (control characters) becomes U+FFFD.
std::string html_text(std::string_view text);

}  // namespace accelerate::cli
