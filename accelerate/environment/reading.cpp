#include "accelerate/environment/reading.h"

#include <sys/random.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <limits>
#include <random>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMaxJobIdLength = 80;

int narrow(int64_t value, std::string_view name) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    throw ConfigError({.what = concat("environment variable ", name, ": ", value, " is out of range")});
  }
  return static_cast<int>(value);
}

}  // namespace

int required_int(const EnvVars& variables, std::string_view name, std::string_view launcher) {
  if (const auto value = variables.get_int(name)) return narrow(*value, name);
  throw ConfigError({.what = concat("environment variable ", name, " is missing, though others show that ",
                                    launcher, " started this process"),
                     .hint = concat("Set ", name, ", or unset the rest to run as one process.")});
}

int int_or(const EnvVars& variables, std::string_view name, int fallback) {
  const auto value = variables.get_int(name);
  return value ? narrow(*value, name) : fallback;
}

std::string to_job_id(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxJobIdLength)) {
    const bool allowed = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    out += allowed ? c : '-';
  }
  return out;
}

std::string random_id() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    std::random_device source;
    bits = (static_cast<uint64_t>(source()) << 32) | source();
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (char& digit : out) {
    digit = kDigits[bits & 15];
    bits >>= 4;
  }
  return out;
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.substr(0, 4) == "127.";
}

}  // namespace accelerate::detail
