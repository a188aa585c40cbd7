#include "launcher/run_files.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/tracker_files.h"
#include "launcher/event_reader.h"

namespace accelerate::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kDeepest = 8;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// "NAN" of printf, Python's "nan", JSON's lack of either.
std::optional<double> number_in(const std::string& text) {
  const std::string word = to_lower(trim(text));
  if (word == "nan" || word == "-nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf" || word == "infinity") return std::numeric_limits<double>::infinity();
  if (word == "-inf" || word == "-infinity") return -std::numeric_limits<double>::infinity();
  if (word == "true") return 1;
  if (word == "false") return 0;
  return parse_double(word);
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

double number_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

class MetricTable {
 public:
  explicit MetricTable(TrackedRun& run) : run_(run) {}
  void add(const std::string& name, const MetricPoint& point) {
    const auto [found, is_new] = at_.try_emplace(name, run_.metrics.size());
    if (is_new) run_.metrics.push_back({name, {}});
    run_.metrics[found->second].points.push_back(point);
  }

 private:
  TrackedRun& run_;
  std::map<std::string, size_t> at_;
};

void read_jsonl(const std::string& text, TrackedRun& run) {
  MetricTable table(run);
  size_t bad = 0;
  double count = 0;
  size_t begin = 0;
  // A last line without its end was cut off while it was written.
  for (size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    const auto first = text.begin() + static_cast<std::ptrdiff_t>(begin);
    const json line = json::parse(first, text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (!line.is_object()) {
      bad += end > begin;
      continue;
    }
    MetricPoint point{.step = line.contains("_step") ? number_of(line, "_step") : count,
                      .time = number_of(line, "_time")};
    ++count;
    for (const auto& [name, value] : line.items()) {
      if (name == "_step" || name == "_time") continue;
      std::optional<double> number;
      if (value.is_number()) number = value.get<double>();
      if (value.is_boolean()) number = value.get<bool>() ? 1 : 0;
      if (value.is_string()) {
        const auto& word = value.get_ref<const std::string&>();
        if (word == "NaN" || word == "Infinity" || word == "-Infinity") number = number_in(word);
      }
      if (!number) continue;
      point.value = *number;
      table.add(name, point);
    }
  }
  if (bad > 0) run.problems.push_back(concat(bad, bad == 1 ? " line is" : " lines are", " no JSON object"));
}

void read_csv(const std::string& text, TrackedRun& run) {
  const auto rows = csv_rows(text);
  if (rows.empty()) return;
  MetricTable table(run);
  const std::vector<std::string>& names = rows.front();
  for (size_t i = 1; i < rows.size(); ++i) {
    MetricPoint point{.step = static_cast<double>(i - 1)};
    for (size_t column = 0; column < std::min(names.size(), rows[i].size()); ++column) {
      if (names[column] == "_step") point.step = number_in(rows[i][column]).value_or(point.step);
      if (names[column] == "_time") point.time = number_in(rows[i][column]).value_or(0);
    }
    for (size_t column = 0; column < std::min(names.size(), rows[i].size()); ++column) {
      if (names[column] == "_step" || names[column] == "_time" || rows[i][column].empty()) continue;
      const auto number = number_in(rows[i][column]);
      if (!number) continue;
      point.value = *number;
      table.add(names[column], point);
    }
  }
}

void read_events(const fs::path& path, TrackedRun& run) {
  MetricTable table(run);
  std::string problem;
  for (const ScalarEvent& event : read_scalar_events(read_file(path), problem)) {
    table.add(event.tag, {static_cast<double>(event.step), event.wall_time, event.value});
  }
  if (!problem.empty()) run.problems.push_back(concat(path.filename().string(), ": ", problem));
}

void read_record(const fs::path& path, TrackedRun& run) {
  const json record = json::parse(read_file(path), nullptr, false);
  if (!record.is_object()) {
    run.problems.push_back(concat(path.filename().string(), " is no JSON object"));
    return;
  }
  run.status = text_of(record, "status");
  run.started = number_of(record, "started");
  run.ended = number_of(record, "ended");
  run.world_size = static_cast<int64_t>(number_of(record, "world_size"));
  run.host = text_of(record, "host");
  run.version = text_of(record, "accelerate");
  for (const json& item : record.value("configuration", json::array())) {
    if (item.is_object()) run.configuration.emplace_back(text_of(item, "name"), text_of(item, "value"));
  }
  for (const json& item : record.value("settings", json::array())) {
    if (!item.is_object()) continue;
    run.settings.push_back({text_of(item, "name"), text_of(item, "value"), text_of(item, "origin")});
  }
}

// The files of one folder.
struct Folder {
  std::vector<std::string> records;           // names of runs
  std::map<std::string, std::string> tables;  // name of a run: extension of its table
  std::vector<std::string> events;
};

// The middle of "metrics-NAME.jsonl", if that is what `file` is.
std::optional<std::string> middle(const std::string& file, std::string_view start, std::string_view end) {
  if (!file.starts_with(start) || !file.ends_with(end) || file.size() <= start.size() + end.size()) return {};
  return file.substr(start.size(), file.size() - start.size() - end.size());
}

std::map<fs::path, Folder> list_folders(const fs::path& directory) {
  std::map<fs::path, Folder> out;
  std::error_code error;
  fs::recursive_directory_iterator at(directory, fs::directory_options::skip_permission_denied, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (at.depth() >= kDeepest) at.disable_recursion_pending();
    std::error_code ignored;
    if (!at->is_regular_file(ignored)) continue;
    const std::string file = at->path().filename().string();
    Folder& folder = out[at->path().parent_path()];
    if (const auto name = middle(file, "run-", ".json")) folder.records.push_back(*name);
    if (const auto name = middle(file, "metrics-", ".csv")) folder.tables.try_emplace(*name, ".csv");
    if (const auto name = middle(file, "metrics-", ".jsonl")) folder.tables[*name] = ".jsonl";
    if (file.find(".tfevents.") != std::string::npos) folder.events.push_back(file);
  }
  return out;
}

// Our own event files begin with the second of the run's start and hold its process: the run's name does too.
bool belongs_to(const std::string& event_file, const std::string& run_name, double started) {
  const std::vector<std::string> parts = split(event_file, '.');
  const size_t dash = run_name.rfind('-');
  if (parts.size() < 6 || dash == std::string::npos) return false;
  return parse_int(parts[3]) == static_cast<int64_t>(started) &&
         parts[parts.size() - 2] == run_name.substr(dash + 1);
}

std::string shown_name(const fs::path& directory, const fs::path& folder, const std::string& run) {
  const std::string below = folder.lexically_relative(directory).string();
  if (run.empty()) return below == "." ? directory.filename().string() : below;
  return below == "." || below.empty() ? run : below + "/" + run;
}

void read_table(const fs::path& folder, const std::string& name, const std::string& extension,
                TrackedRun& run) {
  const fs::path path = folder / concat("metrics-", name, extension);
  run.source = path.string();
  extension == ".jsonl" ? read_jsonl(read_file(path), run) : read_csv(read_file(path), run);
}

void read_folder(const fs::path& directory, const fs::path& path, Folder folder,
                 std::vector<TrackedRun>& runs) {
  std::sort(folder.events.begin(), folder.events.end());
  for (const std::string& name : folder.records) {
    TrackedRun run{.name = shown_name(directory, path, name)};
    read_record(path / concat("run-", name, ".json"), run);
    const auto table = folder.tables.find(name);
    if (table != folder.tables.end()) {
      read_table(path, name, table->second, run);
      folder.tables.erase(table);
    }
    std::erase_if(folder.events, [&](const std::string& file) {
      if (!belongs_to(file, name, run.started)) return false;
      if (run.source.empty()) read_events(path / file, run);
      return true;
    });
    if (run.source.empty()) run.source = (path / concat("run-", name, ".json")).string();
    runs.push_back(std::move(run));
  }
  for (const auto& [name, extension] : folder.tables) {
    TrackedRun run{.name = shown_name(directory, path, name)};
    read_table(path, name, extension, run);
    runs.push_back(std::move(run));
  }
  if (folder.events.empty()) return;
  TrackedRun run{.name = shown_name(directory, path, "")};
  run.source = path.string();
  for (const std::string& file : folder.events) read_events(path / file, run);
  runs.push_back(std::move(run));
}

// What the points say where no record does.
void fill_times(TrackedRun& run) {
  double first = 0;
  double last = 0;
  for (const Metric& metric : run.metrics) {
    for (const MetricPoint& point : metric.points) {
      if (point.time <= 0) continue;
      first = first == 0 ? point.time : std::min(first, point.time);
      last = std::max(last, point.time);
    }
  }
  if (run.started == 0) run.started = first;
  if (run.ended == 0) run.ended = last;
}

}  // namespace

const Metric* TrackedRun::find(const std::string& metric) const {
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const Metric& item) { return item.name == metric; });
  return found == metrics.end() ? nullptr : &*found;
}

std::vector<TrackedRun> find_runs(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw ConfigError({.what = concat("accel report: ", directory),
                       .expected = "a folder",
                       .got = fs::exists(directory, error) ? "a file" : "nothing of that name"});
  }
  std::vector<TrackedRun> runs;
  const fs::path root = fs::path(directory).lexically_normal();
  for (const auto& [path, folder] : list_folders(root)) read_folder(root, path, folder, runs);
  if (runs.empty()) {
    throw ConfigError(
        {.what = concat("accel report: there is no run in ", directory),
         .expected =
             "files named run-*.json, metrics-*.jsonl, metrics-*.csv or *.tfevents.*, also in folders "
             "below",
         .hint =
             "Trackers write them to the logging directory: AcceleratorOptions{.log_with = {\"jsonl\"}}."});
  }
  for (TrackedRun& run : runs) fill_times(run);
  std::stable_sort(runs.begin(), runs.end(),
                   [](const TrackedRun& a, const TrackedRun& b) { return a.started < b.started; });
  return runs;
}

}  // namespace accelerate::cli
