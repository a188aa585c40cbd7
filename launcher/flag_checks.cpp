#include "launcher/flag_checks.h"

#include <functional>
#include <optional>

#include "accelerate/config/excerpt.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

template <class T>
std::string check_range(const std::string& noun, T least, T most, const std::optional<T>& value,
                        const std::string& text) {
  if (value && *value >= least && *value <= most) return {};
  return concat("expected ", noun, " from ", least, " to ", most, ", got '", detail::excerpt(text), "'");
}

}  // namespace

CLI::Validator integer_from(int64_t least, int64_t most) {
  return {[least, most](const std::string& text) {
            return check_range("an integer", least, most, parse_int(text), text);
          },
          ""};
}

CLI::Validator seconds_from(double least, double most) {
  return {[least, most](const std::string& text) {
            return check_range("a number of seconds", least, most, parse_double(text), text);
          },
          ""};
}

void let_last_flag_count(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (!option->get_positional() && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (CLI::App* command : app.get_subcommands(std::function<bool(CLI::App*)>()))
    let_last_flag_count(*command);
}

}  // namespace accelerate::cli
