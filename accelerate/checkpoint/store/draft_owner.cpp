#include "accelerate/checkpoint/store/draft_owner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <sstream>

#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr uint64_t kMostRecordBytes = 4096;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Pids mean something only where both of these are equal.
std::string scope() {
  std::array<char, 64> link{};
  const ssize_t got = ::readlink("/proc/self/ns/pid", link.data(), link.size());
  const std::string name_space(link.data(), got > 0 ? static_cast<size_t>(got) : 0);
  return concat(host_name(), "|", first_line("/proc/sys/kernel/random/boot_id"), "|", name_space);
}

// Clock ticks from boot to the start of a process; empty where there is none. The name in parentheses before
// it may hold anything.
std::string start_time(const std::string& pid) {
  std::string line = first_line(concat("/proc/", pid, "/stat"));
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream fields(line.substr(end + 1));
  std::string value;
  for (int field = 3; field <= 22; ++field) fields >> value;
  return value;
}

DraftState state_by_record(FileSystem& files, const std::string& draft, std::unique_ptr<FileLock> lock) {
  const std::string lock_path = lock_name(draft);
  std::string record;
  int64_t last_sign_s = 0;
  for (const std::string& path : {draft, lock_path}) {
    if (const auto info = files.info(path)) last_sign_s = std::max(last_sign_s, info->modified_s);
  }
  try {
    record = read_whole_file(files, lock_path, kMostRecordBytes);
  } catch (const CheckpointError&) {  // nothing is known, then
  }
  switch (owner_state(record)) {
    case OwnerState::kAlive:
      return {.is_dead = false, .reason = "another process is writing it", .lock = nullptr};
    case OwnerState::kDead:
      return {.is_dead = true, .reason = "the process that wrote it is gone", .lock = std::move(lock)};
    case OwnerState::kUnknown:
      break;
  }
  if (static_cast<int64_t>(std::time(nullptr)) - last_sign_s < kForeignDraftSeconds) {
    return {.is_dead = false,
            .reason = concat("a process of another machine (", record.substr(0, record.find('|')),
                             ") may be writing it; it counts as left behind a day after its last change"),
            .lock = nullptr};
  }
  return {.is_dead = true, .reason = "nobody has written to it for a day", .lock = std::move(lock)};
}

}  // namespace

std::string owner_record() {
  const std::string pid = std::to_string(::getpid());
  return concat(scope(), "|", pid, "|", start_time(pid), "\n");
}

OwnerState owner_state(const std::string& record) {
  const std::vector<std::string> parts = split(trim(record), '|');
  if (parts.size() != 5 || !parse_int(parts[3])) return OwnerState::kUnknown;
  // Two machines may bear the same name, so only an equal boot makes it this one.
  if (concat(parts[0], "|", parts[1], "|", parts[2]) != scope()) return OwnerState::kUnknown;
  const std::string started = start_time(parts[3]);
  return !started.empty() && started == parts[4] ? OwnerState::kAlive : OwnerState::kDead;
}

DraftState draft_state(FileSystem& files, const std::string& draft) {
  const std::string lock_path = lock_name(draft);
  LockAttempt attempt = files.try_lock(lock_path, LockMode::kExclusive, false);
  switch (attempt.state) {
    case LockState::kHeldByOthers:
      return {.is_dead = false, .reason = "another process is writing it", .lock = nullptr};
    case LockState::kMissing:
      // The lock file comes before the folder, so it is gone because somebody had begun to clean up, or
      // because the machine went down before the folder above was synced.
      return {.is_dead = true, .reason = "it has no owner", .lock = nullptr};
    case LockState::kTaken:
      if (files.is_local(lock_path)) {
        return {
            .is_dead = true, .reason = "the process that wrote it is gone", .lock = std::move(attempt.lock)};
      }
      break;
    case LockState::kUnsupported:
      break;
  }
  return state_by_record(files, draft, std::move(attempt.lock));
}

}  // namespace accelerate
