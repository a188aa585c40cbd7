#include "accelerate/tracking/trackers/tracker.h"

#include <algorithm>
#include <chrono>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

double wall_time_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

TrackerArgumentReader::TrackerArgumentReader(std::string_view tracker, const TrackerArguments& arguments)
    : tracker_(tracker), arguments_(arguments) {}

std::optional<std::string> TrackerArgumentReader::text(std::string_view name) {
  known_.emplace_back(name);
  const auto found = arguments_.find(name);
  return found == arguments_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<bool> TrackerArgumentReader::flag(std::string_view name) {
  const auto given = text(name);
  if (!given) return std::nullopt;
  const auto value = parse_bool(*given);
  if (!value) {
    throw ConfigError({.what = concat("init_kwargs: ", tracker_, ".", name),
                       .expected = "true or false",
                       .got = concat("'", *given, "'")});
  }
  return value;
}

std::optional<double> TrackerArgumentReader::number(std::string_view name, double least, double most) {
  const auto given = text(name);
  if (!given) return std::nullopt;
  const auto value = parse_double(*given);
  if (!value || *value < least || *value > most) {
    throw ConfigError({.what = concat("init_kwargs: ", tracker_, ".", name),
                       .expected = concat("a number from ", least, " to ", most),
                       .got = concat("'", *given, "'")});
  }
  return value;
}

void TrackerArgumentReader::done() const {
  for (const auto& [name, value] : arguments_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const auto near = nearest_name(name, known_);
    throw ConfigError({.what = concat("init_kwargs: the tracker ", tracker_, " has no option '", name, "'"),
                       .expected = known_.empty() ? "none" : join(known_, ", "),
                       .hint = near ? concat("Did you mean '", *near, "'?") : ""});
  }
}

}  // namespace accelerate
