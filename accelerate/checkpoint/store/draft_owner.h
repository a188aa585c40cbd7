#pragma once

#include <memory>
#include <string>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// How long a draft on a file system without locks that reach all machines is left alone after its last sign
/// of life, when it was begun by another machine.
inline constexpr int64_t kForeignDraftSeconds = 24 * 60 * 60;

/// One line for the lock file: machine, boot, process namespace, pid and start time of this process.
std::string owner_record();

enum class OwnerState {
  kAlive,
  kDead,
  kUnknown,  ///< of another machine or container, or nothing that owner_record() wrote
};

/// Whether the process that wrote a record still runs. A pid that was given to another process is told apart
/// by its start time.
OwnerState owner_state(const std::string& record);

/// What becomes of a draft that was found.
struct DraftState {
  bool is_dead = false;
  std::string reason;              ///< for people: "another process is writing it"
  std::unique_ptr<FileLock> lock;  ///< of a dead one, where there are locks: keep it while you clean up
};

/// Note "Is anybody still writing this draft?"
///
/// Every process that writes a draft holds a shared lock (flock) on its lock file, which is made before the
/// draft's folder and goes after it has its final name. The kernel drops locks of processes that end, however
/// they end. So on a local file system a lock that can be taken exclusively proves that all writers are gone.
/// Locks of network file systems may or may not reach other machines; there, and where there are no locks at
/// all, the record in the lock file counts: a process of this machine can be looked up, and for one of
/// another machine there is only time, kForeignDraftSeconds.
DraftState draft_state(FileSystem& files, const std::string& draft_path);

}  // namespace accelerate
