#include "accelerate/checkpoint/store/draft.h"

#include <set>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/checkpoint/store/draft_owner.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int kMostNames = 8;

void write_text(WritableFile& file, const std::string& text) {
  file.write(std::as_bytes(std::span(text.data(), text.size())));
}

// Only a checkpoint, or nothing much, may be replaced.
void check_replaceable(FileSystem& files, const std::string& path) {
  const std::optional<FileInfo> info = files.info(path);
  if (!info) return;
  const char* found = nullptr;
  if (info->is_link) {
    found = "a symbolic link";
  } else if (info->kind != FileKind::kDirectory) {
    found = "a file";
  } else if (!files.info(path_in(path, CheckpointManifest::kFileName)) && !files.list(path).empty()) {
    found = "a folder with other things in it";
  }
  if (found == nullptr) return;
  throw CheckpointError({.what = concat("saving to ", path),
                         .expected = "nothing there yet, or an earlier checkpoint",
                         .got = found,
                         .hint = "It is not touched; choose another name, or move it away."});
}

// With its parents; those that were missing are durable afterwards.
void make_folder(FileSystem& files, const std::string& folder) {
  std::vector<std::string> missing;
  for (std::string at = folder; !files.info(at) && at != "/" && at != "."; at = parent_directory(at)) {
    missing.push_back(at);
  }
  files.create_directories(folder);
  for (const std::string& made : missing) files.sync_directory(parent_directory(made));
}

void try_remove(FileSystem& files, const std::string& path) {
  try {
    files.remove(path);
  } catch (const std::exception&) {  // recover_folder() finds it
  }
}

// The folders of all files, the deepest first, so that a folder's name is synced after what it holds.
std::vector<std::string> folders_of(const std::vector<CheckpointFile>& files) {
  std::set<std::string, std::greater<>> folders;
  for (const CheckpointFile& file : files) {
    for (size_t at = file.path.rfind('/'); at != std::string::npos && at > 0;
         at = file.path.rfind('/', at - 1)) {
      folders.insert(file.path.substr(0, at));
    }
  }
  return {folders.begin(), folders.end()};
}

}  // namespace

struct CheckpointDraft::State {
  FileSystem& files;
  std::string path;
  std::string final_path;
  std::unique_ptr<FileLock> lock;
  bool is_creator = false;
  bool is_open = true;             // neither committed nor discarded
  bool has_name = false;           // the draft's folder went to the final name
  std::string set_aside;           // the old checkpoint on its way, where names can't be exchanged
  std::vector<std::string> notes;  // problems that do not keep us from saving

  std::string file_path(const std::string& name) const {
    const std::string problem = problem_with_file_path(name);
    if (!problem.empty()) throw CheckpointError({.what = concat("writing to a checkpoint: ", problem)});
    return path_in(path, name);
  }

  void lock_new_name();
  void check_entries(const std::vector<CheckpointFile>& entries) const;
  void write_manifest_file(const CheckpointManifest& manifest) const;
  void take_final_name();
  void swap_by_two_renames();
  std::vector<std::string> clean_up();
  void remove_all();
};

// The lock comes before the folder: a draft without one counts as left behind.
void CheckpointDraft::State::lock_new_name() {
  for (int tries = 0; tries < kMostNames; ++tries) {
    path = leftover_name(final_path, LeftoverKind::kDraft);
    LockAttempt attempt = files.try_lock(lock_name(path), LockMode::kShared, true);
    lock = std::move(attempt.lock);
    if (attempt.state == LockState::kTaken || attempt.state == LockState::kUnsupported) return;
    // Somebody who cleans up has found it between its making and its locking, and removes it.
  }
  throw CheckpointError({.what = concat("saving to ", final_path),
                         .got = concat(kMostNames, " drafts that another process removed at once"),
                         .hint = "Is another program cleaning up in that folder?"});
}

void CheckpointDraft::State::check_entries(const std::vector<CheckpointFile>& entries) const {
  for (const CheckpointFile& entry : entries) {
    const std::optional<FileInfo> info = files.info(file_path(entry.path));
    if (info && info->kind == FileKind::kFile && info->size_bytes == entry.size_bytes) continue;
    throw CheckpointError(
        {.what = concat("committing ", final_path, ": file ", entry.path),
         .expected = concat(entry.size_bytes, " bytes"),
         .got = info ? concat(info->size_bytes, " bytes") : "no such file",
         .hint = "All processes must write to one folder: is it on a file system that all machines share?"});
  }
}

void CheckpointDraft::State::write_manifest_file(const CheckpointManifest& manifest) const {
  const std::string text = write_manifest(manifest);
  // Their names have to be on disk before a manifest says that they are.
  for (const std::string& folder : folders_of(manifest.files)) files.sync_directory(path_in(path, folder));
  files.sync_directory(path);
  const auto file = files.create(path_in(path, CheckpointManifest::kFileName));
  write_text(*file, text);
  file->sync();
  file->close();
  files.sync_directory(path);
}

void CheckpointDraft::State::swap_by_two_renames() {
  const std::string aside = leftover_name(final_path, LeftoverKind::kOld);
  files.rename(final_path, aside);
  set_aside = aside;
  try {
    files.rename(path, final_path);
  } catch (...) {
    try {
      files.rename(aside, final_path);
      set_aside.clear();
    } catch (const std::exception&) {
      // Both stay as they are, and the next recover_folder() gives one of them the name.
      is_open = false;
    }
    throw;
  }
}

void CheckpointDraft::State::take_final_name() {
  for (bool again = true; !has_name; again = false) {
    const bool was_there = files.info(final_path).has_value();
    try {
      if (!was_there) {
        files.rename(path, final_path);
      } else if (!files.exchange(path, final_path)) {
        swap_by_two_renames();
      }
      has_name = true;
    } catch (const CheckpointError&) {
      // Another process may save under the same name at the same time; the last one wins.
      if (!again || !is_open || files.info(final_path).has_value() == was_there) throw;
    }
  }
  files.sync_directory(parent_directory(final_path));
}

// After the commit: nothing here may fail it.
std::vector<std::string> CheckpointDraft::State::clean_up() {
  std::vector<std::string> problems = std::move(notes);
  try {
    remove_tree(files, path);  // after an exchange, the old checkpoint
    if (!set_aside.empty()) remove_tree(files, set_aside);
    files.remove(lock_name(path));
    files.sync_directory(parent_directory(final_path));
  } catch (const std::exception& error) {
    problems.push_back(concat("the checkpoint that ", final_path,
                              " replaced is not removed yet; the next save tries again: ", error.what()));
  }
  lock.reset();
  return problems;
}

void CheckpointDraft::State::remove_all() {
  if (!is_open) return;
  is_open = false;
  if (!is_creator) return lock.reset();
  remove_tree(files, path);
  files.remove(lock_name(path));
  lock.reset();
}

CheckpointDraft::CheckpointDraft(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointDraft::CheckpointDraft(CheckpointDraft&&) noexcept = default;

CheckpointDraft& CheckpointDraft::operator=(CheckpointDraft&& other) noexcept {
  CheckpointDraft old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

CheckpointDraft::~CheckpointDraft() {
  if (!state_) return;
  try {
    state_->remove_all();
  } catch (const std::exception&) {  // the next recover_folder() sweeps it
  }
}

CheckpointDraft CheckpointDraft::create(FileSystem& files, const std::string& path) {
  const std::string final_path = checkpoint_path(path);
  const std::string folder = parent_directory(final_path);
  make_folder(files, folder);
  auto state = std::make_unique<State>(State{
      .files = files, .path = {}, .final_path = final_path, .lock = nullptr, .set_aside = {}, .notes = {}});
  try {
    recover_folder(files, folder);
  } catch (const CheckpointError& error) {
    state->notes.push_back(concat("cleaning up after earlier saves in ", folder, ": ", error.what()));
  }
  check_replaceable(files, final_path);
  state->lock_new_name();
  state->is_creator = true;
  try {
    const auto record = files.create(lock_name(state->path));
    write_text(*record, owner_record());
    record->close();
    files.create_directory(state->path);
  } catch (...) {
    try_remove(files, lock_name(state->path));
    state->is_open = false;
    throw;
  }
  return CheckpointDraft(std::move(state));
}

CheckpointDraft CheckpointDraft::join(FileSystem& files, const std::string& draft_path) {
  const auto leftover = parse_leftover(file_name(draft_path));
  const std::optional<FileInfo> info = files.info(draft_path);
  LockAttempt attempt;
  if (leftover && info) attempt = files.try_lock(lock_name(draft_path), LockMode::kShared, false);
  if (!leftover || leftover->kind != LeftoverKind::kDraft || !info || attempt.state == LockState::kMissing ||
      attempt.state == LockState::kHeldByOthers) {
    throw CheckpointError(
        {.what = concat("joining the draft of a checkpoint, ", draft_path),
         .expected = "the folder that another process of this job has made",
         .got = info ? "a folder that nobody is writing" : "nothing there",
         .hint = "Is the folder on a file system that all machines share? If so, the save was given up."});
  }
  return CheckpointDraft(
      std::make_unique<State>(State{.files = files,
                                    .path = draft_path,
                                    .final_path = path_in(parent_directory(draft_path), leftover->final_name),
                                    .lock = std::move(attempt.lock),
                                    .set_aside = {},
                                    .notes = {}}));
}

const std::string& CheckpointDraft::path() const {
  return state_->path;
}

const std::string& CheckpointDraft::final_path() const {
  return state_->final_path;
}

CheckpointFile CheckpointDraft::write_file(const std::string& name,
                                           const std::function<void(WritableFile&)>& fill) {
  FileSystem& files = state_->files;
  const std::string path = state_->file_path(name);
  if (name.find('/') != std::string::npos) files.create_directories(parent_directory(path));
  try {
    const std::unique_ptr<WritableFile> file = files.create(path);
    ChecksumFile summed(*file);
    fill(summed);
    file->sync();
    file->close();
    return {.path = name, .size_bytes = summed.size_bytes(), .xxh3_64 = summed.checksum()};
  } catch (...) {
    try_remove(files, path);
    throw;
  }
}

CheckpointFile CheckpointDraft::write_file(const std::string& name, const std::string& content) {
  return write_file(name, [&content](WritableFile& file) { write_text(file, content); });
}

CheckpointFile CheckpointDraft::add_file(const std::string& name) {
  const std::string path = state_->file_path(name);
  const std::unique_ptr<ReadableFile> file = state_->files.open(path);
  CheckpointFile out{.path = name};
  Xxh3 sum;
  std::vector<std::byte> buffer(kPieceBytes);
  for (size_t got = buffer.size(); got == buffer.size();) {
    got = file->read(buffer);
    sum.update(std::span(buffer.data(), got));
    out.size_bytes += got;
  }
  out.xxh3_64 = sum.digest();
  state_->files.sync_file(path);
  return out;
}

std::vector<std::string> CheckpointDraft::commit(CheckpointManifest manifest) {
  State& state = *state_;
  if (!state.is_creator || !state.is_open) {
    throw CheckpointError({.what = concat("committing ", state.final_path),
                           .expected = "the process that made the draft, once",
                           .got = state.is_creator ? "a draft that is committed or discarded already"
                                                   : "a process that joined it"});
  }
  state.check_entries(manifest.files);
  state.write_manifest_file(manifest);
  check_replaceable(state.files, state.final_path);
  try {
    state.take_final_name();
  } catch (...) {
    if (state.has_name) state.is_open = false;  // it has gone to its place; nothing is left to discard
    throw;
  }
  state.is_open = false;
  return state.clean_up();
}

void CheckpointDraft::discard() {
  if (state_) state_->remove_all();
}

}  // namespace accelerate
