#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

/// A snapshot of environment variables. Code reads this instead of getenv(), so that tests (and several ranks
/// in one process) can each have their own.
class EnvVars {
 public:
  EnvVars() = default;
  explicit EnvVars(std::map<std::string, std::string, std::less<>> values) : values_(std::move(values)) {}

  /// The variables of this process, now.
  static EnvVars from_process();

  /// The text, or nothing where the variable is unset or empty (an empty variable means "not given").
  std::optional<std::string> get(std::string_view name) const;
  /// @throws ConfigError naming the variable and its text when that is no integer.
  std::optional<int64_t> get_int(std::string_view name) const;
  /// @throws ConfigError naming the variable, its text and the words allowed when that is no boolean.
  std::optional<bool> get_bool(std::string_view name) const;

  void set(std::string name, std::string value) { values_[std::move(name)] = std::move(value); }
  void unset(std::string_view name);
  const std::map<std::string, std::string, std::less<>>& values() const { return values_; }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace accelerate
