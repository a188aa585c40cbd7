#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/manifest.h"
#include "accelerate/core/file_system.h"

namespace accelerate {

/// A checkpoint that is being written: a folder beside its final place, with a name that says so, which takes
/// the final name as a whole or not at all. What a crash leaves at each moment, and how it is cleaned up: the
/// note in recovery.h.
///
/// One process create()s it and hands path() to the others, which join() it. Each writes its files; one, the
/// creator, gathers everybody's entries and commits. Local: nothing here waits for another process, so the
/// caller sees to it that all have written before one commits, and that all have joined before the creator
/// leaves.
///
///     auto draft = CheckpointDraft::create(system_files(), "out/checkpoint_3");
///     manifest.files.push_back(draft.write_file("model.safetensors", [&](WritableFile& file) { ... }));
///     draft.commit(manifest);
///
/// Writing different files from several threads is fine; all else is for one thread.
class CheckpointDraft {
 public:
  /// Cleans up what dead saves left in the folder above (recover_folder()), makes that folder where it is
  /// missing, and a draft in it. A checkpoint that already has the name stays as it is until commit().
  /// @throws CheckpointError where `final_path` is something other than a checkpoint, or as FileSystem does.
  static CheckpointDraft create(FileSystem& files, const std::string& final_path);

  /// In another process, with the creator's path().
  /// @throws CheckpointError where it is not there: not a folder that all machines share, or discarded.
  static CheckpointDraft join(FileSystem& files, const std::string& draft_path);

  CheckpointDraft(CheckpointDraft&&) noexcept;
  CheckpointDraft& operator=(CheckpointDraft&&) noexcept;
  /// The creator's discards what was not committed; failures of that are left to the next recover_folder().
  ~CheckpointDraft();

  const std::string& path() const;        ///< the draft's folder
  const std::string& final_path() const;  ///< where it goes

  /// Writes one file: `fill` writes the content, which is summed on its way; then fsync. `name` may have
  /// parts ("rank_0/optimizer.bin"); their folders are made.
  /// @throws CheckpointError for a name that is no place below the draft, or as FileSystem does; what `fill`
  /// throws. The file is then removed.
  CheckpointFile write_file(const std::string& name, const std::function<void(WritableFile&)>& fill);
  /// The same with the content at hand.
  CheckpointFile write_file(const std::string& name, const std::string& content);

  /// For a file that something else wrote into the draft: reads it once to sum it, then fsync.
  CheckpointFile add_file(const std::string& name);

  /// Gives the draft its final name, durably. `manifest.files` are the entries of all processes. Checks that
  /// all of them are here with their sizes, syncs the folders, writes the manifest, syncs, and renames; a
  /// checkpoint that had the name is exchanged atomically (without a moment in which neither is there) and
  /// removed afterwards. Where names can't be exchanged, the old one is renamed first, and a crash in between
  /// is put right by recover_folder().
  /// @return what went wrong beside the commit, in words (an old checkpoint or the rest of a dead save that
  /// can't be removed): the new one is there all the same. Empty when all is well.
  /// @throws CheckpointError when it is not committed, or when it can't be told whether the name would
  /// outlast a power failure. A checkpoint that had the name is then still there, or the new one is.
  std::vector<std::string> commit(CheckpointManifest manifest);

  /// Removes the draft (creator) or leaves it (the others). Nothing to do after commit().
  void discard();

 private:
  struct State;
  explicit CheckpointDraft(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace accelerate
