#pragma once

#include <memory>

#include "accelerate/tracking/trackers/record_file.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// One JSON object a line in `logging_dir/project/metrics-RUN.jsonl`:
///
///     {"_step":10,"_time":1764495301.25,"loss":0.25,"epoch":1}
///
/// What is not finite is written as the text "NaN", "Infinity" or "-Infinity", since JSON has no such
/// numbers. Options (init_kwargs): `flush_secs` (2), `main_process_only` (true; false: every rank writes a
/// file of its own, `metrics-RUN.rank1.jsonl`).
class JsonlTracker final : public Tracker {
 public:
  std::string name() const override { return "jsonl"; }
  bool main_process_only() const override { return main_process_only_; }
  bool requires_logging_directory() const override { return true; }
  void start(const TrackerContext& context) override;
  /// Nothing: the run's own record `run-RUN.json` holds the configuration.
  void store_init_configuration(const TrackedValues& values) override {}
  void log(const TrackedValues& values, std::optional<int64_t> step) override;
  void finish(RunStatus status) override;

  /// As the option of that name; for a tracker that is made by hand.
  explicit JsonlTracker(bool main_process_only = true) : main_process_only_(main_process_only) {}

 private:
  bool main_process_only_;
  std::unique_ptr<RecordFile> file_;
  int64_t next_step_ = 0;
};

}  // namespace accelerate
