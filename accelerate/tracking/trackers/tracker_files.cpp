#include "accelerate/tracking/trackers/tracker_files.h"

#include "accelerate/core/strings.h"

namespace accelerate {

std::string metrics_path(const TrackerContext& context, std::string_view extension) {
  const std::string rank = context.rank == 0 ? "" : concat(".rank", context.rank);
  return concat(context.directory, "/metrics-", context.run_name, rank, ".", extension);
}

RecordFileOptions record_file_options(TrackerArgumentReader& arguments, const TrackerContext& context) {
  RecordFileOptions out{.logger = context.logger};
  arguments.flag("main_process_only");
  if (const auto seconds = arguments.number("flush_secs", 0.001, 86400)) {
    out.flush_interval = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
  }
  return out;
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string out;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out += ',';
    const std::string& field = fields[i];
    if (field.find_first_of(",\"\r\n") == std::string::npos) {
      out += field;
      continue;
    }
    out += '"';
    for (const char c : field) {
      if (c == '"') out += '"';
      out += c;
    }
    out += '"';
  }
  return out + "\n";
}

std::vector<std::vector<std::string>> csv_rows(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += '"';
        ++i;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',' || c == '\n') {
      if (c == '\n' && !field.empty() && field.back() == '\r') field.pop_back();
      row.push_back(std::move(field));
      field.clear();
      if (c == '\n') {
        rows.push_back(std::move(row));
        row.clear();
      }
    } else {
      field += c;
    }
  }
  return rows;
}

}  // namespace accelerate
