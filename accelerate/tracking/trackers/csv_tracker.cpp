#include "accelerate/tracking/trackers/csv_tracker.h"

#include <algorithm>
#include <cstdio>

#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/tracker_files.h"

namespace accelerate {
namespace {

// Every row of `content` filled up to the columns, below a new first line.
std::string with_columns(const std::string& content, const std::vector<std::string>& columns) {
  std::string out = csv_line(columns);
  std::vector<std::vector<std::string>> rows = csv_rows(content);
  for (size_t i = 1; i < rows.size(); ++i) {
    rows[i].resize(columns.size());
    out += csv_line(rows[i]);
  }
  return out;
}

std::string time_text(double seconds) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.6f", seconds);
  return buffer;
}

}  // namespace

void CsvTracker::start(const TrackerContext& context) {
  TrackerArgumentReader arguments(name(), context.arguments);
  const RecordFileOptions options = record_file_options(arguments, context);
  arguments.done();
  file_ = std::make_unique<RecordFile>(metrics_path(context, "csv"), options);
}

void CsvTracker::add_columns(const TrackedValues& values) {
  const bool first = columns_.empty();
  const size_t before = columns_.size();
  if (first) columns_ = {"_step", "_time"};
  for (const auto& [name, value] : values) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  }
  if (first) {
    file_->append(csv_line(columns_));
  } else if (columns_.size() > before) {
    file_->rewrite(
        [columns = columns_](const std::string& content) { return with_columns(content, columns); });
  }
}

void CsvTracker::log(const TrackedValues& values, std::optional<int64_t> step) {
  add_columns(values);
  std::vector<std::string> fields(columns_.size());
  fields[0] = std::to_string(step.value_or(next_step_));
  fields[1] = time_text(wall_time_seconds());
  next_step_ = step.value_or(next_step_) + 1;
  for (const auto& [name, value] : values) {
    const auto column = std::find(columns_.begin(), columns_.end(), name) - columns_.begin();
    fields[static_cast<size_t>(column)] = value.text();
  }
  file_->append(csv_line(fields));
}

void CsvTracker::finish(RunStatus status) {
  if (file_) file_->close();
}

}  // namespace accelerate
