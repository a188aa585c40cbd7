#include "accelerate/checkpoint/store/recovery.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "accelerate/checkpoint/store/draft_owner.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/verify.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Leftovers = std::vector<Leftover>;

bool is_complete(const CheckpointVerification& found) {
  return found.manifest && found.complete();
}

class Recovery {
 public:
  Recovery(FileSystem& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  RecoveryReport run() {
    std::map<std::string, Leftovers> by_checkpoint;
    for (const std::string& name : files_.list(folder_)) {
      if (auto leftover = parse_leftover(name)) by_checkpoint[leftover->final_name].push_back(*leftover);
    }
    // What is seen now is what decisions rest on, so it must outlast what they remove.
    if (!by_checkpoint.empty()) files_.sync_directory(folder_);
    for (const auto& [final_name, leftovers] : by_checkpoint) recover(final_name, leftovers);
    if (changed_) files_.sync_directory(folder_);
    return std::move(report_);
  }

 private:
  std::string path(const std::string& name) const { return path_in(folder_, name); }

  // An error of the disk may pass: nothing is decided, and nothing removed, on what can't be read now.
  CheckpointVerification quick(const std::string& name) const {
    CheckpointVerification out = verify_checkpoint(files_, path(name), VerifyLevel::kQuick);
    if (!out.unreadable()) return out;
    throw CheckpointError({.what = concat("cleaning up in ", folder_),
                           .got = concat(name, ", which can't be read: ", out.reason()),
                           .hint = "Nothing was removed on account of it."});
  }

  void recover(const std::string& final_name, const Leftovers& leftovers) {
    std::vector<std::string> drafts;
    std::vector<std::string> old_ones;
    bool is_live = false;
    locks_.clear();
    for (const Leftover& leftover : leftovers) {
      if (leftover.kind == LeftoverKind::kRemoving) discard(leftover.name);
      if (leftover.kind == LeftoverKind::kOld) old_ones.push_back(leftover.name);
      if (leftover.kind == LeftoverKind::kDraft || leftover.kind == LeftoverKind::kLock) {
        is_live = is_live || !take_over(leftover, drafts);
      }
    }
    // Whoever writes a draft may be between two renames, and will clean up the rest.
    if (!is_live) settle(final_name, drafts, old_ones);
    for (const auto& [draft, lock] : locks_) remove_lock(draft);
    locks_.clear();
  }

  // False if the draft is someone's.
  bool take_over(const Leftover& leftover, std::vector<std::string>& drafts) {
    std::string draft = leftover.name;
    if (leftover.kind == LeftoverKind::kLock) draft = draft.substr(0, draft.size() - lock_name("").size());
    if (locks_.contains(draft)) return true;
    DraftState state = draft_state(files_, path(draft));
    if (!state.is_dead) {
      const std::string line = concat(draft, ": ", state.reason);
      auto& left = report_.left_alone;
      if (std::find(left.begin(), left.end(), line) == left.end()) left.push_back(line);
      return false;
    }
    locks_[draft] = std::move(state.lock);
    if (files_.info(path(draft))) drafts.push_back(draft);
    return true;
  }

  void settle(const std::string& final_name, std::vector<std::string>& drafts,
              std::vector<std::string>& old_ones) {
    if (drafts.empty() && old_ones.empty()) return;
    const CheckpointVerification there = quick(final_name);
    if (!is_complete(there)) {
      // Without a manifest of ours in it, it is somebody's folder: not ours to move.
      const std::optional<FileInfo> info = files_.info(path(final_name));
      const bool is_foreign = info && !files_.info(path_in(path(final_name), CheckpointManifest::kFileName));
      const std::string* best = newest_complete(drafts);
      if (best == nullptr) best = newest_complete(old_ones);
      if (best == nullptr && !info && !old_ones.empty()) best = &old_ones.back();
      if (is_foreign) return leave(final_name, drafts, old_ones);
      if (best != nullptr) {
        give_name(*best, final_name, info.has_value());
        std::erase(old_ones, std::string(*best));
        std::erase_if(drafts, [this](const std::string& name) { return !files_.info(path(name)); });
      } else if (info) {
        // A damaged one under the name, and nothing complete: old ones stay for whoever wants to look.
        for (const std::string& name : old_ones) report_.left_alone.push_back(concat(name, ": damaged"));
        old_ones.clear();
      }
    }
    for (const std::string& name : drafts) discard(name);
    for (const std::string& name : old_ones) discard(name);
  }

  void leave(const std::string& final_name, const std::vector<std::string>& drafts,
             const std::vector<std::string>& old_ones) {
    for (const auto* names : {&drafts, &old_ones}) {
      for (const std::string& name : *names) {
        if (is_complete(quick(name))) {
          report_.left_alone.push_back(
              concat(name, ": its name is taken by the folder ", final_name, ", which is no checkpoint"));
        } else {
          discard(name);
        }
      }
    }
  }

  // By the time in their manifests; nullptr if none is complete.
  const std::string* newest_complete(const std::vector<std::string>& names) const {
    const std::string* best = nullptr;
    std::string best_time;
    for (const std::string& name : names) {
      const CheckpointVerification found = quick(name);
      if (!is_complete(found)) continue;
      if (best == nullptr || found.manifest->time > best_time) {
        best = &name;
        best_time = found.manifest->time;
      }
    }
    return best;
  }

  void give_name(const std::string& name, const std::string& final_name, bool replaces) {
    // Its writer may have been killed between the manifest's last byte and its fsync.
    files_.sync_file(path_in(path(name), CheckpointManifest::kFileName));
    files_.sync_directory(path(name));
    std::string removing;
    if (replaces) {
      removing = leftover_name(final_name, LeftoverKind::kRemoving);
      files_.rename(path(final_name), path(removing));
      files_.sync_directory(folder_);
    }
    files_.rename(path(name), path(final_name));
    files_.sync_directory(folder_);
    report_.restored.push_back(final_name);
    if (!removing.empty()) discard(removing);
  }

  void discard(const std::string& name) {
    remove_tree(files_, path(name));
    report_.removed.push_back(name);
    changed_ = true;
  }

  void remove_lock(const std::string& draft) {
    files_.remove(path(lock_name(draft)));
    changed_ = true;
  }

  FileSystem& files_;
  std::string folder_;
  RecoveryReport report_;
  std::map<std::string, std::unique_ptr<FileLock>> locks_;  // by draft; held while its checkpoint is settled
  bool changed_ = false;
};

}  // namespace

RecoveryReport recover_folder(FileSystem& files, const std::string& folder) {
  const std::optional<FileInfo> info = files.info(folder);
  if (!info || info->kind != FileKind::kDirectory) return {};
  return Recovery(files, folder).run();
}

void remove_checkpoint(FileSystem& files, const std::string& path) {
  const std::string final_path = checkpoint_path(path);
  const std::string removing = leftover_name(final_path, LeftoverKind::kRemoving);
  files.rename(final_path, removing);
  files.sync_directory(parent_directory(final_path));
  remove_tree(files, removing);
  files.sync_directory(parent_directory(final_path));
}

}  // namespace accelerate
