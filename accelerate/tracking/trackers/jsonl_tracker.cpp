#include "accelerate/tracking/trackers/jsonl_tracker.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "accelerate/tracking/trackers/tracker_files.h"

namespace accelerate {
namespace {

nlohmann::ordered_json to_json(const TrackedValue& value) {
  if (value.is_text()) return value.text();
  if (value.is_bool()) return *value.number() != 0;
  if (value.is_integer()) return std::get<int64_t>(value.value());
  const double number = *value.number();
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

}  // namespace

void JsonlTracker::start(const TrackerContext& context) {
  TrackerArgumentReader arguments(name(), context.arguments);
  const RecordFileOptions options = record_file_options(arguments, context);
  arguments.done();
  file_ = std::make_unique<RecordFile>(metrics_path(context, "jsonl"), options);
}

void JsonlTracker::log(const TrackedValues& values, std::optional<int64_t> step) {
  nlohmann::ordered_json line;
  line["_step"] = step.value_or(next_step_);
  line["_time"] = wall_time_seconds();
  next_step_ = step.value_or(next_step_) + 1;
  for (const auto& [name, value] : values) line[name] = to_json(value);
  // Bytes that are no UTF-8 must not end a training run.
  file_->append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void JsonlTracker::finish(RunStatus status) {
  if (file_) file_->close();
}

}  // namespace accelerate
