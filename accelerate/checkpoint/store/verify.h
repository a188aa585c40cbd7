#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/manifest.h"
#include "accelerate/core/file_system.h"

namespace accelerate {

enum class VerifyLevel {
  kQuick,  ///< manifest, and size of every file: a few system calls a file
  kFull,   ///< also the checksum of every file: reads all of it
};

/// How far a verification has come.
struct VerifyProgress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  ///< as the manifest says
  std::string file = {};     ///< being read, below the checkpoint's folder
};
using VerifyCallback = std::function<void(const VerifyProgress&)>;

struct CheckpointProblem {
  std::string path;  ///< of the file, below the checkpoint's folder; "" for the folder itself
  std::string what;  ///< "cut off: 100 of 4096 bytes are there"
  /// It could not be looked at (an error of the disk, no right to read), so that it may well be whole.
  /// Nothing may be removed because of it.
  bool is_unreadable = false;
};

struct CheckpointVerification {
  std::optional<CheckpointManifest> manifest;  ///< nothing where it can't be read
  std::vector<CheckpointProblem> problems;     ///< all of them; none: complete
  std::vector<std::string> other_files;        ///< in the folder, but not in the manifest: no problem

  bool complete() const { return problems.empty(); }
  /// Whether one of the problems is that something could not be looked at.
  bool unreadable() const;
  /// The problems in one line, the first few of them if there are many.
  std::string reason() const;
};

/// Checks one checkpoint. Files are read in pieces of 1 MiB; `progress` is called after each. Local; never
/// throws for what is wrong with the checkpoint, a file that can't be read included.
CheckpointVerification verify_checkpoint(FileSystem& files, const std::string& folder, VerifyLevel level,
                                         const VerifyCallback& progress = {});

}  // namespace accelerate
