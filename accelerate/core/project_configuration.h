#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate {

/// Where a project keeps its files: HF Accelerate's ProjectConfiguration.
struct ProjectConfiguration {
  /// The project's folder; checkpoints go to its subfolder `checkpoints`. Empty: none.
  std::string project_dir = {};
  /// What trackers write goes to a folder of the tracked project's name in here. Empty: project_dir.
  std::string logging_dir = {};
  /// save_state() without a path writes to `checkpoints/checkpoint_<iteration>` and counts up.
  bool automatic_checkpoint_naming = false;
  /// With automatic naming, only so many checkpoints are kept. Default: all.
  std::optional<int64_t> total_limit = std::nullopt;
  /// Number of the next checkpoint; load_state() sets it to the one after what it loads.
  int64_t iteration = 0;

  /// logging_dir, or project_dir where that is not set.
  const std::string& logging_directory() const { return logging_dir.empty() ? project_dir : logging_dir; }
};

}  // namespace accelerate
