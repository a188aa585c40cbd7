#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/core/log.h"
#include "accelerate/environment/env_vars.h"
#include "accelerate/tracking/trackers/tracked_value.h"

namespace accelerate {

/// How a run ended.
enum class RunStatus { kFinished, kFailed };

/// Options of one tracker by name, as texts: HF Accelerate's `init_kwargs`.
using TrackerArguments = std::map<std::string, std::string, std::less<>>;

/// What a tracker is told when it starts.
struct TrackerContext {
  std::string project;        ///< what init_trackers() was given
  std::string run_name = {};  ///< differs between the runs of a project: "20261130-174501-4711"
  std::string directory =
      {};              ///< `logging_dir/project`, which exists; empty where there is no logging directory
  double started = 0;  ///< seconds since 1970
  int rank = 0;
  int world_size = 1;
  EnvVars environment = {};
  TrackerArguments arguments = {};
  std::shared_ptr<Logger> logger = nullptr;  ///< never null in start()
};

/// A place that values are sent to. To make one of your own, derive from this and give an object of it to
/// AcceleratorOptions::log_with. All calls come from the thread that calls the Accelerator, in this order:
/// start, store_init_configuration (when there is a configuration), log any number of times, finish. None of
/// them should wait for a disk or a network: that belongs to a thread of the tracker's own.
class Tracker {
 public:
  virtual ~Tracker() = default;

  /// What get_tracker() and init_kwargs call it.
  virtual std::string name() const = 0;
  /// False: every rank has the tracker; else only the main process.
  virtual bool main_process_only() const { return true; }
  /// True: init_trackers() is an error where there is no directory to write to.
  virtual bool requires_logging_directory() const { return false; }
  /// The run begins.
  /// @throws ConfigError for arguments that can't be used.
  virtual void start(const TrackerContext& context) {}
  /// What the run was configured with (learning rate, batch size, ...), once, before the first log().
  virtual void store_init_configuration(const TrackedValues& values) = 0;
  /// Values at one moment. `step` is whatever the caller counts in; nothing: the tracker counts by itself.
  virtual void log(const TrackedValues& values, std::optional<int64_t> step) = 0;
  /// The run is over: writes what is left and waits for it, with a limit.
  /// @throws Error telling how much was lost, if anything was.
  virtual void finish(RunStatus status) = 0;
};

/// Pixels of a picture, row by row from the top, channels interleaved.
struct ImageView {
  std::span<const uint8_t> pixels;  ///< height * width * channels bytes
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 1;  ///< 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha
};

/// What some trackers have in addition. A tracker that has it derives from both.
class MediaTracker {
 public:
  virtual ~MediaTracker() = default;

  /// A text, as Markdown where the tracker shows that.
  virtual void log_text(const std::string& name, const std::string& text, std::optional<int64_t> step) = 0;
  /// How `values` are distributed. They may be empty, and hold NaN and infinities, which are left out.
  virtual void log_histogram(const std::string& name, std::span<const float> values,
                             std::optional<int64_t> step) = 0;
  /// @throws ConfigError when the sizes do not fit each other.
  virtual void log_image(const std::string& name, const ImageView& image, std::optional<int64_t> step) = 0;
};

/// Seconds since 1970, now.
double wall_time_seconds();

/// Reads a tracker's arguments one by one; done() refuses those that nobody asked for.
class TrackerArgumentReader {
 public:
  TrackerArgumentReader(std::string_view tracker, const TrackerArguments& arguments);

  std::optional<std::string> text(std::string_view name);
  /// @throws ConfigError when the text is no boolean.
  std::optional<bool> flag(std::string_view name);
  /// @throws ConfigError when the text is no number, or not in [least, most].
  std::optional<double> number(std::string_view name, double least, double most);
  /// @throws ConfigError naming an argument that was not asked for, and the nearest that was.
  void done() const;

 private:
  std::string tracker_;
  TrackerArguments arguments_;
  std::vector<std::string> known_;
};

}  // namespace accelerate
