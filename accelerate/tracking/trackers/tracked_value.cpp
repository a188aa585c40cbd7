#include "accelerate/tracking/trackers/tracked_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace accelerate {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

std::optional<double> TrackedValue::number() const {
  if (const auto* flag = std::get_if<bool>(&value_)) return *flag ? 1.0 : 0.0;
  if (const auto* integer = std::get_if<int64_t>(&value_)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value_)) return *number;
  return std::nullopt;
}

std::string TrackedValue::text() const {
  if (const auto* flag = std::get_if<bool>(&value_)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value_)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&value_)) return number_text(*number);
  return std::get<std::string>(value_);
}

TrackedValues without_repeats(const TrackedValues& values) {
  TrackedValues out;
  for (const auto& [name, value] : values) {
    const auto same = [&name = name](const auto& item) { return item.first == name; };
    const auto found = std::find_if(out.begin(), out.end(), same);
    if (found == out.end()) {
      out.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
  return out;
}

}  // namespace accelerate
