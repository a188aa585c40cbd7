#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate {

/// What has a number inside that `item<double>()` gives: a tensor of one element. Reading it waits for its
/// device.
template <class T>
concept HasOneNumber = requires(const T& value) {
  { value.template item<double>() } -> std::convertible_to<double>;
};

/// One thing that is logged or configured: a truth value, a number, or a text. Made from whatever is one of
/// them.
class TrackedValue {
 public:
  TrackedValue(bool value) : value_(value) {}
  template <std::integral T>
  TrackedValue(T value) : value_(from_integer(value)) {}
  template <std::floating_point T>
  TrackedValue(T value) : value_(static_cast<double>(value)) {}
  TrackedValue(std::string value) : value_(std::move(value)) {}
  TrackedValue(std::string_view value) : value_(std::string(value)) {}
  TrackedValue(const char* value) : value_(std::string(value)) {}
  template <HasOneNumber T>
  TrackedValue(const T& value) : value_(static_cast<double>(value.template item<double>())) {}

  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_text() const { return std::holds_alternative<std::string>(value_); }
  /// The value as a number (true is 1), or nothing for a text.
  std::optional<double> number() const;
  /// The value as a text that reads back as the same value: "true", "12", "0.1", "nan".
  std::string text() const;
  const std::variant<bool, int64_t, double, std::string>& value() const { return value_; }

  bool operator==(const TrackedValue&) const = default;

 private:
  using Value = std::variant<bool, int64_t, double, std::string>;
  template <std::integral T>
  static Value from_integer(T value) {
    if (std::in_range<int64_t>(value)) return static_cast<int64_t>(value);
    return static_cast<double>(value);
  }

  Value value_;
};

/// Names and values in the order given: `{{"loss", 0.25}, {"epoch", 3}}`. Of a name that comes twice, the
/// last value counts.
using TrackedValues = std::vector<std::pair<std::string, TrackedValue>>;

/// `values` without those that a later one of the same name replaces.
TrackedValues without_repeats(const TrackedValues& values);

/// The shortest decimal that reads back as `value`; "nan", "inf", "-inf".
std::string number_text(double value);

}  // namespace accelerate
