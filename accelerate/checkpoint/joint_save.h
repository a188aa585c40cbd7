#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/draft.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/file_system.h"

namespace accelerate::detail {

/// One file that this rank writes.
struct FileToWrite {
  std::string name;  ///< below the checkpoint's folder
  std::function<void(WritableFile&)> fill;
};

/// Where and with whom a checkpoint is written.
struct JointSaveOptions {
  FileSystem* files = nullptr;
  std::string path;        ///< of the checkpoint
  Store* store = nullptr;  ///< null for one rank
  int rank = 0;
  int size = 1;
  std::string topic;         ///< prefix of its keys in the store, its own for each save
  std::string former_topic;  ///< keys of the save before, which can go; may be empty
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// After the commit, only so many checkpoints stay in the folder.
  std::optional<int64_t> total_limit = std::nullopt;
};

/// Note [A save of all ranks]
/// Rank 0 makes a draft and tells its path, the others join it. Each writes its files and hands their entries
/// to rank 0, which commits when all have done so, removes old checkpoints, and tells how it ended. They talk
/// through the store, not by collectives, so that a save can run in a thread of its own beside the training.
/// A rank that fails says so; then rank 0 gives the draft up and every rank throws.
class JointSave {
 public:
  /// Collective over the store. Opens the draft.
  /// @throws CheckpointError on all ranks when it can't be made or joined, CommError when a rank does not
  /// come.
  explicit JointSave(JointSaveOptions options);

  /// Folder of the draft, for whoever adds files of his own before finish().
  const std::string& draft_path() const { return draft_->path(); }

  /// Collective over the store, once. Writes this rank's files and commits; `manifest.files` are filled in.
  /// Files that others have put into the draft become part of the checkpoint.
  /// @return what went wrong beside the commit, in words, on rank 0
  /// @throws as above; the draft is gone then, and what was there before is as it was.
  std::vector<std::string> finish(const std::vector<FileToWrite>& mine, CheckpointManifest manifest);

  /// From another thread: waits end soon, since nobody may be left to wait for.
  void give_up() { given_up_ = true; }

 private:
  std::string wait_for(const std::string& key, int writer);
  std::vector<CheckpointFile> write(const std::vector<FileToWrite>& mine);
  std::vector<CheckpointFile> gather(const std::string& own);
  void add_files_of_others(std::vector<CheckpointFile>& files);
  std::vector<std::string> commit(CheckpointManifest manifest);
  void say(const std::string& name, const std::string& text) noexcept;
  void tell(const std::string& name, const std::string& text, const std::vector<int>& listeners);
  [[noreturn]] void fail(const std::string& problem) const;
  std::string key(const std::string& name) const { return options_.topic + "/" + name; }

  JointSaveOptions options_;
  std::optional<CheckpointDraft> draft_;
  std::vector<int> listeners_;  // ranks that wait to hear how it ended
  std::atomic<bool> given_up_ = false;
};

}  // namespace accelerate::detail
