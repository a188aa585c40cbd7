#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/trackers/record_file.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// "directory/metrics-RUN.jsonl"; on other ranks than 0 "metrics-RUN.rank1.jsonl".
std::string metrics_path(const TrackerContext& context, std::string_view extension);

/// Reads `flush_secs`; `main_process_only` is known, and read by make_tracker().
RecordFileOptions record_file_options(TrackerArgumentReader& arguments, const TrackerContext& context);

/// One line of CSV (RFC 4180, but with a bare line feed): what holds a comma, a quote or a line end is
/// quoted.
std::string csv_line(const std::vector<std::string>& fields);

/// The rows of a CSV text. A last line without its line end is left out: its writer was cut off.
std::vector<std::vector<std::string>> csv_rows(std::string_view text);

}  // namespace accelerate
