#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/manifest.h"
#include "accelerate/checkpoint/store/verify.h"
#include "accelerate/core/file_system.h"

namespace accelerate {

/// A complete checkpoint of a run's folder.
struct ListedCheckpoint {
  std::string name;  ///< "checkpoint_3"
  /// Where it is: NAME in the folder, or, after a crash at the wrong moment and until recover_folder() has
  /// run, under a leftover's name.
  std::string path;
  int64_t number = 0;  ///< 3
  CheckpointManifest manifest;
};

/// What lies beside them and is passed over.
struct SkippedEntry {
  std::string name;
  std::string reason;
  bool is_checkpoint = false;  ///< bears a checkpoint's name, has a manifest, and is known to be damaged
};

struct CheckpointListing {
  std::vector<ListedCheckpoint> checkpoints;  ///< by number, the newest last
  std::vector<SkippedEntry> skipped;          ///< by name

  /// The one to go on from; nullptr if there is none.
  const ListedCheckpoint* newest() const { return checkpoints.empty() ? nullptr : &checkpoints.back(); }
};

/// Looks through a folder of checkpoints `checkpoint_<n>` (n without leading zeros, as HF Accelerate's
/// automatic naming). Only reads, so that it works where nothing may be written: a checkpoint that a crash
/// left under a leftover's name is listed from there. Files in the folder are passed over without a word,
/// everything else that is no complete checkpoint is in `skipped`.
/// @param level kQuick looks at manifests and sizes, kFull reads everything
/// @throws CheckpointError where the folder can't be read.
CheckpointListing list_checkpoints(FileSystem& files, const std::string& folder,
                                   VerifyLevel level = VerifyLevel::kQuick);

/// Where a run resumes: cleans up after saves that died (where the folder may be written to), then the newest
/// complete checkpoint, or nothing if there is none (or no folder).
/// @throws CheckpointError where the folder can't be read.
std::optional<ListedCheckpoint> find_newest_checkpoint(FileSystem& files, const std::string& folder,
                                                       VerifyLevel level = VerifyLevel::kQuick);

/// Keeps the `total_limit` newest complete checkpoints (by number) and `keep`, the one just committed, which
/// counts among them; removes the others, oldest first, and damaged ones that are older than all that stay.
/// Folders of others and damaged newer ones stay. Call it after the commit; a crash in the middle leaves work
/// for the next save's recover_folder().
/// @param total_limit at least 1
/// @param keep name of the checkpoint just committed
/// @return names of those removed
/// @throws CheckpointError for a limit below 1, or as FileSystem does.
std::vector<std::string> rotate_checkpoints(FileSystem& files, const std::string& folder, int64_t total_limit,
                                            const std::string& keep);

}  // namespace accelerate
