#include "accelerate/tracking/trackers/tensorboard_tracker.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/event_file.h"
#include "accelerate/tracking/trackers/png.h"
#include "accelerate/tracking/trackers/tracker_files.h"

namespace accelerate {
namespace {

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// TensorBoard takes files with "tfevents" in their name, in order of their names. The number at the end makes
// the trackers of one process differ, as TensorFlow's own.
std::string file_name(double wall_time) {
  static std::atomic<int> count{0};
  char seconds[16];
  std::snprintf(seconds, sizeof seconds, "%010lld", static_cast<long long>(wall_time));
  return concat("events.out.tfevents.", seconds, ".", host_name(), ".", ::getpid(), ".", count++);
}

}  // namespace

void TensorBoardTracker::start(const TrackerContext& context) {
  TrackerArgumentReader arguments(name(), context.arguments);
  const RecordFileOptions options = record_file_options(arguments, context);
  const bool run_folders = arguments.flag("run_folders").value_or(false);
  arguments.done();
  run_name_ = context.run_name;
  std::string folder = context.directory;
  if (run_folders) folder += "/" + run_name_;
  // Ranks would be drawn over each other.
  if (context.rank != 0) folder += concat("/rank", context.rank);
  file_ = std::make_unique<RecordFile>(concat(folder, "/", file_name(context.started)), options);
  put(version_event(context.started));
}

void TensorBoardTracker::put(const std::string& event) {
  file_->append(event_record(event));
}

void TensorBoardTracker::store_init_configuration(const TrackedValues& values) {
  put(session_start_event(wall_time_seconds(), run_name_, without_repeats(values)));
  has_session_ = true;
}

void TensorBoardTracker::log(const TrackedValues& values, std::optional<int64_t> step) {
  const EventTime time{wall_time_seconds(), step.value_or(next_step_)};
  next_step_ = time.step + 1;
  for (const auto& [name, value] : values) {
    const auto number = value.number();
    put(number ? scalar_event(time, name, *number) : text_event(time, name, value.text()));
  }
}

void TensorBoardTracker::log_text(const std::string& name, const std::string& text,
                                  std::optional<int64_t> step) {
  put(text_event({wall_time_seconds(), step.value_or(next_step_)}, name, text));
}

void TensorBoardTracker::log_histogram(const std::string& name, std::span<const float> values,
                                       std::optional<int64_t> step) {
  put(histogram_event({wall_time_seconds(), step.value_or(next_step_)}, name, values));
}

void TensorBoardTracker::log_image(const std::string& name, const ImageView& image,
                                   std::optional<int64_t> step) {
  put(image_event({wall_time_seconds(), step.value_or(next_step_)}, name, image.height, image.width,
                  image.channels, encode_png(image)));
}

void TensorBoardTracker::finish(RunStatus status) {
  if (!file_) return;
  if (has_session_) put(session_end_event(wall_time_seconds(), status == RunStatus::kFinished));
  file_->close();
}

}  // namespace accelerate
