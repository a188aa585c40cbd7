#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerate/tracking/trackers/record_file.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// A table in `logging_dir/project/metrics-RUN.csv`: columns `_step`, `_time`, and one a name. A name that
/// comes later becomes a new column; the file is then rewritten once, so that every line always has as many
/// fields as the first. Options as JsonlTracker's.
class CsvTracker final : public Tracker {
 public:
  explicit CsvTracker(bool main_process_only = true) : main_process_only_(main_process_only) {}

  std::string name() const override { return "csv"; }
  bool main_process_only() const override { return main_process_only_; }
  bool requires_logging_directory() const override { return true; }
  void start(const TrackerContext& context) override;
  /// Nothing: the run's own record `run-RUN.json` holds the configuration.
  void store_init_configuration(const TrackedValues& values) override {}
  void log(const TrackedValues& values, std::optional<int64_t> step) override;
  void finish(RunStatus status) override;

 private:
  void add_columns(const TrackedValues& values);

  bool main_process_only_;
  std::unique_ptr<RecordFile> file_;
  std::vector<std::string> columns_;
  int64_t next_step_ = 0;
};

}  // namespace accelerate
