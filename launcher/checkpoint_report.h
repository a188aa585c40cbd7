#pragma once

#include <string>
#include <utility>
#include <vector>

#include "accelerate/checkpoint/store/listing.h"
#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/checkpoint/store/verify.h"

namespace accelerate::cli {

/// One checkpoint, as `accel checkpoint` shows it.
struct CheckpointReport {
  std::string path;
  CheckpointVerification verification;
  /// Headers of its safetensors files, where they were asked for.
  std::vector<std::pair<std::string, SafetensorsHeader>> tensors;
};

/// What PATH holds: one checkpoint, or a folder of them.
struct CheckpointReports {
  std::string path;
  bool is_folder = false;  ///< of several
  std::vector<CheckpointReport> checkpoints;
  std::vector<SkippedEntry> skipped;  ///< in the folder, and no complete checkpoints
  std::string newest;                 ///< path of the one that a run would go on from; "" if none

  /// 0, or 6 where something that bears a checkpoint's name is not complete, or nothing is there.
  int exit_code() const;
};

struct ReportRequest {
  VerifyLevel level = VerifyLevel::kQuick;
  bool with_tensors = false;
  VerifyCallback progress = {};
};

/// Looks at `path`. Only reads.
/// @throws CheckpointError where it is not there or holds nothing like a checkpoint.
CheckpointReports report_checkpoints(FileSystem& files, const std::string& path,
                                     const ReportRequest& request);

/// For people, and for programs.
std::string report_text(const CheckpointReports& reports, bool with_files);
std::string report_json(const CheckpointReports& reports);

}  // namespace accelerate::cli
