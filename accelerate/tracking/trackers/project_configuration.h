#pragma once

#include <string>

namespace accelerate {

/// Where a project keeps its files: HF Accelerate's ProjectConfiguration.
struct ProjectConfiguration {
  /// The project's folder. Empty: none.
  std::string project_dir = {};
  /// What trackers write goes to a folder of the tracked project's name in here. Empty: project_dir.
  std::string logging_dir = {};

  /// logging_dir, or project_dir where that is not set.
  const std::string& logging_directory() const { return logging_dir.empty() ? project_dir : logging_dir; }
};

}  // namespace accelerate
