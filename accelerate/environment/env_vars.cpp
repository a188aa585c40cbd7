#include "accelerate/environment/env_vars.h"

#include <unistd.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

EnvVars EnvVars::from_process() {
  EnvVars out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    out.values_.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

std::optional<std::string> EnvVars::get(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int64_t> EnvVars::get_int(std::string_view name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(*text);
  if (!value) {
    throw ConfigError({.what = concat("environment variable ", name),
                       .expected = "an integer",
                       .got = concat("'", *text, "'"),
                       .hint = concat("Set it to a number or unset it (unset ", name, ").")});
  }
  return value;
}

std::optional<bool> EnvVars::get_bool(std::string_view name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_bool(*text);
  if (!value) {
    throw ConfigError({.what = concat("environment variable ", name),
                       .expected = "true/yes/on/1 or false/no/off/0",
                       .got = concat("'", *text, "'"),
                       .hint = concat("Set it to one of these or unset it (unset ", name, ").")});
  }
  return value;
}

void EnvVars::unset(std::string_view name) {
  const auto found = values_.find(name);
  if (found != values_.end()) values_.erase(found);
}

}  // namespace accelerate
