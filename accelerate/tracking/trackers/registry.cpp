#include "accelerate/tracking/trackers/registry.h"

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/csv_tracker.h"
#include "accelerate/tracking/trackers/jsonl_tracker.h"
#include "accelerate/tracking/trackers/mlflow_tracker.h"
#include "accelerate/tracking/trackers/tensorboard_tracker.h"

namespace accelerate {
namespace {

struct Row {
  std::string_view name;
  std::shared_ptr<Tracker> (*make)(bool main_process_only);
};

template <class T>
std::shared_ptr<Tracker> make_file_tracker(bool main_process_only) {
  return std::make_shared<T>(main_process_only);
}

std::shared_ptr<Tracker> make_mlflow_tracker(bool main_process_only) {
  return std::make_shared<MlflowTracker>();
}

// A new tracker is one file and one line here.
constexpr Row kRows[] = {
    {"jsonl", make_file_tracker<JsonlTracker>},
    {"csv", make_file_tracker<CsvTracker>},
    {"tensorboard", make_file_tracker<TensorBoardTracker>},
    {"mlflow", make_mlflow_tracker},
};

}  // namespace

std::vector<std::string> tracker_names() {
  std::vector<std::string> out;
  for (const Row& row : kRows) out.emplace_back(row.name);
  return out;
}

std::shared_ptr<Tracker> make_tracker(std::string_view name, const TrackerArguments& arguments) {
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    return row.make(TrackerArgumentReader(name, arguments).flag("main_process_only").value_or(true));
  }
  const std::vector<std::string> names = tracker_names();
  const auto near = nearest_name(name, names);
  throw ConfigError({.what = "log_with",
                     .expected = concat(join(names, ", "), ", all, or an object derived from Tracker"),
                     .got = concat("'", name, "'"),
                     .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

}  // namespace accelerate
