#include "accelerate/core/strings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace accelerate {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

// What two spellings are compared by: case and the choice of '-' or '_' are no difference.
std::string folded(std::string_view text) {
  std::string out = to_lower(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

// Optimal string alignment distance (Damerau-Levenshtein without overlapping swaps).
int64_t edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int64_t> cells((a.size() + 1) * width);
  auto at = [&](size_t i, size_t j) -> int64_t& { return cells[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = static_cast<int64_t>(i);
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replace = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

}  // namespace

std::string trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string to_upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += separator;
    out += parts[i];
  }
  return out;
}

std::optional<int64_t> parse_int(std::string_view text) {
  std::string digits = trim(text);
  const char* begin = digits.data();
  const char* end = begin + digits.size();
  if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') ++begin;
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || begin == end) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  const std::string digits = trim(text);
  double value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || stop != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<bool> parse_bool(std::string_view text) {
  static constexpr std::array<std::string_view, 6> kTrue = {"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array<std::string_view, 6> kFalse = {"n", "no", "f", "false", "off", "0"};
  const std::string word = to_lower(trim(text));
  if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<std::string> nearest_name(std::string_view text, std::span<const std::string> candidates) {
  const std::string wanted = folded(text);
  std::optional<std::string> best;
  // A slip changes about a third of a word at most; beyond that a suggestion misleads.
  int64_t best_distance = std::max<int64_t>(1, static_cast<int64_t>(wanted.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int64_t distance = edit_distance(wanted, folded(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string format_ranks(std::span<const int> ranks) {
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return concat("rank ", ranks[0]);
  std::string out = "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i]);
  }
  return out;
}

std::string shell_quote(std::string_view text) {
  static constexpr std::string_view kPlain = "_-./:=,+@%";
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != std::string_view::npos;
  });
  if (plain) return std::string(text);
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace accelerate
