#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate {

/// All arguments streamed one after the other into one string.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// `text` without leading and trailing blanks, tabs and line ends.
std::string trim(std::string_view text);

/// ASCII lower case.
std::string to_lower(std::string_view text);

/// ASCII upper case.
std::string to_upper(std::string_view text);

/// Parts of `text` between `separator`; empty parts are kept, so "a,,b" gives three. An empty text gives
/// none.
std::vector<std::string> split(std::string_view text, char separator);

/// Parts joined by `separator`.
std::string join(std::span<const std::string> parts, std::string_view separator);

/// The whole of `text` (blanks around it allowed) as a decimal integer, or nothing.
std::optional<int64_t> parse_int(std::string_view text);

/// The whole of `text` as a finite decimal number ("1e8" is one), or nothing.
std::optional<double> parse_double(std::string_view text);

/// HF Accelerate's booleans, any case: y yes t true on 1 / n no f false off 0; nothing for any other text.
std::optional<bool> parse_bool(std::string_view text);

/// The candidate with the smallest edit distance to `text` (insert, delete, replace, swap of neighbours; case
/// and the difference between '-' and '_' cost nothing), or nothing if none is near enough to be a likely
/// slip.
std::optional<std::string> nearest_name(std::string_view text, std::span<const std::string> candidates);

/// `bytes` for people, in units of 1024: "512 B", "1.5 MiB".
std::string format_bytes(uint64_t bytes);

/// "rank 1" / "ranks 1, 2 and 5"; an empty list gives "no rank".
std::string format_ranks(std::span<const int> ranks);

/// `text` in single quotes so that a shell takes it as one word; left alone where it needs none.
std::string shell_quote(std::string_view text);

}  // namespace accelerate
