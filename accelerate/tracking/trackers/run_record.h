#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/config/load.h"
#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// What a run was, in `logging_dir/project/run-RUN.json` beside what its trackers wrote. `accel report` reads
/// it. The file is replaced as a whole at every change.
class RunRecord {
 public:
  /// `settings`: what the job was launched with.
  /// @throws CheckpointError when the file can't be written; so does every change.
  RunRecord(const TrackerContext& context, const std::vector<ExplainedValue>& settings);

  /// What init_trackers() was given.
  void set_configuration(const TrackedValues& values);
  void set_end(RunStatus status);

 private:
  void write() const;

  TrackerContext context_;
  std::vector<ExplainedValue> settings_;
  TrackedValues configuration_;
  std::optional<RunStatus> status_;
  double ended_ = 0;
};

}  // namespace accelerate
