#include "accelerate/checkpoint/store/listing.h"

#include <algorithm>
#include <map>

#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

const char* leftover_reason(LeftoverKind kind) {
  switch (kind) {
    case LeftoverKind::kDraft:
      return "a draft: being written, or what a save left that died";
    case LeftoverKind::kOld:
      return "a checkpoint that was being replaced";
    case LeftoverKind::kRemoving:
      return "a checkpoint that was being removed";
    case LeftoverKind::kLock:
      break;
  }
  return "a lock";
}

class Lister {
 public:
  Lister(FileSystem& files, std::string folder, VerifyLevel level)
      : files_(files), folder_(std::move(folder)), level_(level) {}

  CheckpointListing run() {
    for (const std::string& name : files_.list(folder_)) look_at(name);
    for (const auto& [name, leftovers] : leftovers_) look_at_leftovers(name, leftovers);
    std::sort(out_.checkpoints.begin(), out_.checkpoints.end(),
              [](const auto& a, const auto& b) { return a.number < b.number; });
    std::sort(out_.skipped.begin(), out_.skipped.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return std::move(out_);
  }

 private:
  void skip(const std::string& name, const std::string& reason, bool is_checkpoint = false) {
    out_.skipped.push_back({name, reason, is_checkpoint});
  }

  void look_at(const std::string& name) {
    const std::optional<FileInfo> info = files_.info(path_in(folder_, name));
    if (!info || info->kind != FileKind::kDirectory) return;
    if (const auto leftover = parse_leftover(name)) {
      if (checkpoint_number(leftover->final_name)) {
        leftovers_[leftover->final_name].push_back(*leftover);
      } else {
        skip(name, leftover_reason(leftover->kind));
      }
      return;
    }
    if (!checkpoint_number(name)) {
      return skip(name, concat("its name is not ", checkpoint_name(0), " or the like"));
    }
    CheckpointVerification found = verify_checkpoint(files_, path_in(folder_, name), level_);
    if (!found.complete()) {
      // What can't be read now may be read tomorrow: only what is known to be damaged may be rotated out.
      const std::string manifest = path_in(path_in(folder_, name), CheckpointManifest::kFileName);
      return skip(name, found.reason(), !found.unreadable() && files_.exists(manifest));
    }
    add(name, name, std::move(*found.manifest));
  }

  void add(const std::string& name, const std::string& found_as, CheckpointManifest manifest) {
    out_.checkpoints.push_back({.name = name,
                                .path = path_in(folder_, found_as),
                                .number = *checkpoint_number(name),
                                .manifest = std::move(manifest)});
  }

  bool is_listed(const std::string& name) const {
    return std::any_of(out_.checkpoints.begin(), out_.checkpoints.end(),
                       [&name](const auto& listed) { return listed.name == name; });
  }

  // The same choice that recover_folder() makes, without touching anything.
  void look_at_leftovers(const std::string& name, const std::vector<Leftover>& leftovers) {
    std::string best;
    std::optional<CheckpointManifest> manifest;
    for (const LeftoverKind kind : {LeftoverKind::kDraft, LeftoverKind::kOld}) {
      if (manifest || is_listed(name)) break;
      for (const Leftover& leftover : leftovers) {
        if (leftover.kind != kind) continue;
        CheckpointVerification found = verify_checkpoint(files_, path_in(folder_, leftover.name), level_);
        if (!found.complete() || (manifest && manifest->time >= found.manifest->time)) continue;
        best = leftover.name;
        manifest = std::move(found.manifest);
      }
    }
    for (const Leftover& leftover : leftovers) {
      if (leftover.name != best) skip(leftover.name, leftover_reason(leftover.kind));
    }
    if (manifest) add(name, best, std::move(*manifest));
  }

  FileSystem& files_;
  std::string folder_;
  VerifyLevel level_;
  CheckpointListing out_;
  std::map<std::string, std::vector<Leftover>> leftovers_;  // by the name of their checkpoint
};

}  // namespace

CheckpointListing list_checkpoints(FileSystem& files, const std::string& folder, VerifyLevel level) {
  return Lister(files, folder, level).run();
}

std::optional<ListedCheckpoint> find_newest_checkpoint(FileSystem& files, const std::string& folder,
                                                       VerifyLevel level) {
  if (!files.info(folder)) return std::nullopt;
  try {
    recover_folder(files, folder);
  } catch (const CheckpointError&) {  // perhaps nothing may be written here; reading is enough
  }
  const CheckpointListing listing = list_checkpoints(files, folder, level);
  if (listing.newest() == nullptr) return std::nullopt;
  return *listing.newest();
}

std::vector<std::string> rotate_checkpoints(FileSystem& files, const std::string& folder, int64_t total_limit,
                                            const std::string& keep) {
  if (total_limit < 1) {
    throw CheckpointError({.what = "total_limit",
                           .expected = "1 or more checkpoints to keep",
                           .got = std::to_string(total_limit),
                           .hint = "Leave it out to keep all of them."});
  }
  const CheckpointListing listing = list_checkpoints(files, folder);
  std::vector<std::pair<int64_t, std::string>> going;
  int64_t oldest_kept = INT64_MAX;
  int64_t kept = 1;  // `keep` itself
  for (auto entry = listing.checkpoints.rbegin(); entry != listing.checkpoints.rend(); ++entry) {
    // What has not got its name yet may be another process's, in the middle of its commit.
    if (entry->path != path_in(folder, entry->name)) continue;
    if (entry->name != keep && kept == total_limit) {
      going.emplace_back(entry->number, entry->name);
      continue;
    }
    if (entry->name != keep) ++kept;
    oldest_kept = std::min(oldest_kept, entry->number);
  }
  for (const SkippedEntry& entry : listing.skipped) {
    const auto number = checkpoint_number(entry.name);
    if (entry.is_checkpoint && number && *number < oldest_kept && entry.name != keep) {
      going.emplace_back(*number, entry.name);
    }
  }
  std::sort(going.begin(), going.end());
  std::vector<std::string> removed;
  for (const auto& [number, name] : going) {
    remove_checkpoint(files, path_in(folder, name));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace accelerate
