#include "accelerate/tracking/trackers/tracker_set.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/registry.h"
#include "accelerate/tracking/trackers/run_record.h"

namespace accelerate {
namespace {

class BlankTracker final : public Tracker {
 public:
  std::string name() const override { return "blank"; }
  void store_init_configuration(const TrackedValues& values) override {}
  void log(const TrackedValues& values, std::optional<int64_t> step) override {}
  void finish(RunStatus status) override {}
};

// "all" spelled out: what can start with what there is.
std::vector<LogWith> spelled_out(const TrackerSetOptions& options) {
  std::vector<LogWith> out;
  for (const LogWith& item : options.log_with) {
    if (item.name() == nullptr || *item.name() != "all") {
      out.push_back(item);
      continue;
    }
    for (const std::string& name : tracker_names()) {
      const bool needs_server = name == "mlflow";
      if (!needs_server || options.environment.get("MLFLOW_TRACKING_URI")) out.emplace_back(name);
    }
  }
  return out;
}

std::string utc_text(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

void check_project_name(const std::string& project) {
  const bool leaves = project == "." || project == ".." || project.starts_with("../") ||
                      project.ends_with("/..") || project.find("/../") != std::string::npos;
  if (!project.empty() && project.front() != '/' && !leaves && project.find('\0') == std::string::npos)
    return;
  throw ConfigError({.what = "init_trackers: the project's name becomes a folder in the logging directory",
                     .expected = "a name such as \"mnist\"",
                     .got = concat("'", project, "'")});
}

}  // namespace

TrackerSet::TrackerSet(TrackerSetOptions options)
    : options_(std::move(options)), blank_(std::make_unique<BlankTracker>()) {
  if (!options_.logger) options_.logger = std::make_shared<Logger>(options_.rank);
  options_.log_with = spelled_out(options_);
  std::vector<std::string> seen;
  for (const LogWith& item : options_.log_with) {
    if (item.name() == nullptr && !item.tracker()) {
      throw ConfigError({.what = "log_with holds an empty pointer", .rank = options_.rank});
    }
    seen.push_back(item.name() != nullptr ? make_tracker(*item.name())->name() : item.tracker()->name());
    if (std::count(seen.begin(), seen.end(), seen.back()) > 1) {
      throw ConfigError({.what = concat("log_with names the tracker '", seen.back(), "' twice")});
    }
  }
}

TrackerSet::~TrackerSet() {
  for (const std::string& problem : finish_all(RunStatus::kFailed)) {
    options_.logger->error(problem, LogRanks::kAll);
  }
}

std::vector<std::string> TrackerSet::names() const {
  std::vector<std::string> out;
  for (const LogWith& item : options_.log_with) {
    out.push_back(item.name() != nullptr ? *item.name() : item.tracker()->name());
  }
  return out;
}

void TrackerSet::choose_trackers(const TrackerInitKwargs& kwargs) {
  trackers_.clear();
  for (const LogWith& item : options_.log_with) {
    std::shared_ptr<Tracker> tracker = item.tracker();
    if (!tracker) {
      const auto given = kwargs.find(*item.name());
      tracker = make_tracker(*item.name(), given == kwargs.end() ? TrackerArguments() : given->second);
    }
    if (options_.rank == 0 || !tracker->main_process_only()) trackers_.push_back(std::move(tracker));
  }
}

bool TrackerSet::writes_files() const {
  return std::any_of(trackers_.begin(), trackers_.end(),
                     [](const auto& tracker) { return tracker->requires_logging_directory(); });
}

TrackerContext TrackerSet::make_context(const std::string& project) const {
  TrackerContext out{.project = project,
                     .rank = options_.rank,
                     .world_size = options_.world_size,
                     .environment = options_.environment,
                     .logger = options_.logger};
  out.started = wall_time_seconds();
  out.run_name = concat(utc_text(out.started), "-", ::getpid());
  const std::string& directory = options_.project.logging_directory();
  if (!directory.empty()) {
    out.directory = directory + "/" + project;
    // Two runs of a process within a second.
    for (int i = 2; system_files().exists(concat(out.directory, "/run-", out.run_name, ".json")); ++i) {
      out.run_name = concat(utc_text(out.started), ".", i, "-", ::getpid());
    }
  } else if (writes_files()) {
    throw ConfigError({.what = concat("the trackers ", join(names(), ", "),
                                      " write files, and there is no folder for them"),
                       .hint = "Set AcceleratorOptions{.project_config = {.project_dir = \"out\"}}.",
                       .rank = options_.rank});
  }
  return out;
}

void TrackerSet::init(const std::string& project, const TrackedValues& config,
                      const TrackerInitKwargs& kwargs) {
  if (running_) {
    throw ConfigError({.what = "init_trackers was called again while a run goes on",
                       .hint = "Call end_training() first.",
                       .rank = options_.rank});
  }
  check_project_name(project);
  const std::vector<std::string> known = names();
  for (const auto& [name, arguments] : kwargs) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw ConfigError({.what = concat("init_kwargs has options for '", name, "'"),
                       .expected = known.empty() ? "none, since log_with is empty" : join(known, ", "),
                       .rank = options_.rank});
  }
  choose_trackers(kwargs);
  if (trackers_.empty()) {
    running_ = true;
    return;
  }
  TrackerContext context = make_context(project);
  const bool files = writes_files();
  if (files) system_files().create_directories(context.directory);
  if (files && options_.rank == 0) record_ = std::make_unique<RunRecord>(context, options_.settings);
  running_ = true;
  std::vector<std::shared_ptr<Tracker>> started;
  try {
    for (const auto& tracker : trackers_) {
      const auto given = kwargs.find(tracker->name());
      context.arguments = given == kwargs.end() ? TrackerArguments() : given->second;
      tracker->start(context);
      started.push_back(tracker);
    }
    if (config.empty()) return;
    if (record_) record_->set_configuration(config);
    for (const auto& tracker : trackers_) tracker->store_init_configuration(config);
  } catch (...) {
    trackers_ = std::move(started);
    finish_all(RunStatus::kFailed);
    throw;
  }
}

void TrackerSet::log(const TrackedValues& values, std::optional<int64_t> step) {
  if (!running_ && !options_.log_with.empty()) {
    throw ConfigError({.what = "log() was called before init_trackers()",
                       .hint = "Call accelerator.init_trackers(\"project\") once, before the loop.",
                       .rank = options_.rank});
  }
  for (const auto& tracker : trackers_) tracker->log(values, step);
}

std::vector<MediaTracker*> TrackerSet::media_trackers(std::string_view what) {
  std::vector<MediaTracker*> out;
  for (const auto& tracker : trackers_) {
    if (auto* media = dynamic_cast<MediaTracker*>(tracker.get())) out.push_back(media);
  }
  if (out.empty() && !trackers_.empty()) {
    options_.logger->warning_once(
        concat("none of the trackers ", join(names(), ", "), " takes ", what, "; tensorboard does"));
  }
  return out;
}

void TrackerSet::log_text(const std::string& name, const std::string& text, std::optional<int64_t> step) {
  for (MediaTracker* tracker : media_trackers("texts")) tracker->log_text(name, text, step);
}

void TrackerSet::log_histogram(const std::string& name, std::span<const float> values,
                               std::optional<int64_t> step) {
  for (MediaTracker* tracker : media_trackers("histograms")) tracker->log_histogram(name, values, step);
}

void TrackerSet::log_image(const std::string& name, const ImageView& image, std::optional<int64_t> step) {
  for (MediaTracker* tracker : media_trackers("images")) tracker->log_image(name, image, step);
}

Tracker& TrackerSet::get(std::string_view name) {
  for (const auto& tracker : trackers_) {
    if (tracker->name() == name) return *tracker;
  }
  const std::vector<std::string> known = names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw ConfigError({.what = concat("get_tracker(\"", name, "\")"),
                       .expected = known.empty() ? "no name, since log_with is empty" : join(known, ", "),
                       .rank = options_.rank});
  }
  return *blank_;
}

std::vector<std::string> TrackerSet::finish_all(RunStatus status) {
  std::vector<std::string> problems;
  if (!running_) return problems;
  running_ = false;
  const auto attempt = [&problems](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      problems.push_back(error_message(error));
    }
  };
  for (const auto& tracker : trackers_) attempt([&] { tracker->finish(status); });
  if (record_) attempt([&] { record_->set_end(status); });
  record_.reset();
  trackers_.clear();
  return problems;
}

void TrackerSet::finish(RunStatus status) {
  const std::vector<std::string> problems = finish_all(status);
  if (problems.empty()) return;
  throw Error({.what = concat("not everything that was logged has been kept: ", join(problems, "; ")),
               .rank = options_.rank});
}

}  // namespace accelerate
