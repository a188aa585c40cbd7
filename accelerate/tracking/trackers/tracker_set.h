#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "accelerate/config/load.h"
#include "accelerate/core/project_configuration.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// A tracker by its name ("jsonl", "csv", "tensorboard", "mlflow", or "all": those of them that need nothing
/// more than there is), or an object of your own.
class LogWith {
 public:
  LogWith(std::string name) : value_(std::move(name)) {}
  LogWith(const char* name) : value_(std::string(name)) {}
  template <std::derived_from<Tracker> T>
  LogWith(std::shared_ptr<T> tracker) : value_(std::shared_ptr<Tracker>(std::move(tracker))) {}

  const std::string* name() const { return std::get_if<std::string>(&value_); }
  /// Null where there is a name.
  std::shared_ptr<Tracker> tracker() const {
    const auto* tracker = std::get_if<std::shared_ptr<Tracker>>(&value_);
    return tracker != nullptr ? *tracker : nullptr;
  }

 private:
  std::variant<std::string, std::shared_ptr<Tracker>> value_;
};

/// Options of several trackers, by their names: HF Accelerate's `init_kwargs`.
using TrackerInitKwargs = std::map<std::string, TrackerArguments, std::less<>>;

/// What a TrackerSet has to know.
struct TrackerSetOptions {
  std::vector<LogWith> log_with;
  ProjectConfiguration project;
  int rank = 0;
  int world_size = 1;
  EnvVars environment = {};
  std::shared_ptr<Logger> logger = nullptr;   ///< null: one of rank `rank`
  std::vector<ExplainedValue> settings = {};  ///< for the run's record
};

/// All trackers of a run, on one rank. On ranks other than 0 it holds only those trackers that want every
/// rank, and does nothing where there are none. Local; one thread at a time.
class TrackerSet {
 public:
  /// @throws ConfigError for a name that is not known.
  explicit TrackerSet(TrackerSetOptions options);
  /// A run that has not been ended is ended as failed; what goes wrong is logged.
  ~TrackerSet();
  TrackerSet(const TrackerSet&) = delete;
  TrackerSet& operator=(const TrackerSet&) = delete;

  /// Begins a run of the project: starts the trackers, and hands them `config` where it is not empty.
  /// @throws ConfigError when a run goes on already, for a project's name that can't be a folder, trackers
  /// that need a logging directory where there is none, or init_kwargs that no tracker takes.
  void init(const std::string& project, const TrackedValues& config = {},
            const TrackerInitKwargs& kwargs = {});
  /// Hands the values to every tracker. Does nothing where log_with is empty.
  /// @throws ConfigError before init().
  void log(const TrackedValues& values, std::optional<int64_t> step = std::nullopt);

  /// To those trackers that have it; a warning, once, where none has.
  void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step = std::nullopt);
  void log_histogram(const std::string& name, std::span<const float> values,
                     std::optional<int64_t> step = std::nullopt);
  void log_image(const std::string& name, const ImageView& image, std::optional<int64_t> step = std::nullopt);

  /// The tracker of that name; one that does nothing on ranks that do not have it.
  /// @throws ConfigError for a name that log_with does not hold.
  Tracker& get(std::string_view name);

  /// Ends the run and waits for the trackers, each up to its own limit. Does nothing without a run.
  /// @throws Error listing what every tracker has lost.
  void finish(RunStatus status = RunStatus::kFinished);

  bool running() const { return running_; }

 private:
  TrackerContext make_context(const std::string& project) const;
  void choose_trackers(const TrackerInitKwargs& kwargs);
  std::vector<std::string> names() const;
  bool writes_files() const;
  std::vector<MediaTracker*> media_trackers(std::string_view what);
  std::vector<std::string> finish_all(RunStatus status);

  TrackerSetOptions options_;
  std::vector<std::shared_ptr<Tracker>> trackers_;  // those of this rank
  std::unique_ptr<class RunRecord> record_;
  std::unique_ptr<Tracker> blank_;
  bool running_ = false;
};

}  // namespace accelerate
