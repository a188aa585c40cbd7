#include "accelerate/checkpoint/joint_save.h"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/listing.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using Json = nlohmann::json;

std::string entries_text(const std::vector<CheckpointFile>& files) {
  Json out = Json::array();
  for (const CheckpointFile& file : files) out.push_back({file.path, file.size_bytes, file.xxh3_64});
  return out.dump();
}

void add_entries(const std::string& text, std::vector<CheckpointFile>& out) {
  for (const Json& entry : Json::parse(text))
    out.push_back({.path = entry[0], .size_bytes = entry[1], .xxh3_64 = entry[2]});
}

// Paths of all files below a folder.
void list_files(FileSystem& files, const std::string& folder, const std::string& prefix,
                std::vector<std::string>& out) {
  for (const std::string& name : files.list(folder)) {
    const std::string path = path_in(folder, name);
    const std::optional<FileInfo> info = files.info(path);
    if (info && info->kind == FileKind::kDirectory) {
      list_files(files, path, prefix + name + "/", out);
    } else if (info && info->kind == FileKind::kFile) {
      out.push_back(prefix + name);
    }
  }
}

// The message without "rank 3: ", which is said in another way.
std::string problem_text(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr) return error_message(error);
  ErrorText text = ours->text();
  text.rank.reset();
  return Error(std::move(text)).what();
}

}  // namespace

JointSave::JointSave(JointSaveOptions options) : options_(std::move(options)) {
  const bool is_main = options_.rank == 0;
  if (is_main) {
    try {
      draft_.emplace(CheckpointDraft::create(*options_.files, options_.path));
    } catch (const std::exception& error) {
      std::vector<int> others;
      for (int rank = 1; rank < options_.size; ++rank) others.push_back(rank);
      if (!others.empty()) tell("draft", concat("!", problem_text(error)), others);
      throw;
    }
    if (options_.size > 1) options_.store->set(key("draft"), concat("=", draft_->path()));
  } else {
    const std::string said = wait_for("draft", 0);
    if (said.starts_with('!')) {
      say(concat("heard/", options_.rank), "=");
      fail(said.substr(1));
    }
    try {
      draft_.emplace(CheckpointDraft::join(*options_.files, said.substr(1)));
    } catch (const std::exception& error) {
      say(concat("entries/", options_.rank), concat("!", problem_text(error)));
      throw;
    }
  }
}

void JointSave::fail(const std::string& problem) const {
  throw CheckpointError(
      {.what = concat("saving to ", options_.path, ": ", problem), .rank = options_.rank, .echo = true});
}

std::string JointSave::wait_for(const std::string& name, int writer) {
  constexpr std::chrono::milliseconds kSlice{500};
  constexpr std::chrono::seconds kGrace{20};  // for a save that may be as good as done
  const Deadline deadline = Deadline::after(options_.timeout);
  std::optional<Deadline> last;
  do {
    std::optional<std::string> value;
    try {
      value = options_.store->get(key(name), std::min(kSlice, deadline.remaining()));
    } catch (const std::exception& error) {
      throw CommError({.what = concat("saving to ", options_.path,
                                      ": the job's store does not answer, so rank 0 is gone"),
                       .got = error_message(error),
                       .rank = options_.rank});
    }
    if (value) return *value;
    if (given_up_ && !last) last = Deadline::after(kGrace);
  } while (!deadline.expired() && !(last && last->expired()));
  throw CommError(
      {.what = last ? concat("saving to ", options_.path, " was given up while waiting for rank ", writer)
                    : concat("saving to ", options_.path, ": rank ", writer, " did not come to it within ",
                             static_cast<double>(options_.timeout.count()) / 1000.0, " s"),
       .hint = "It may be gone, or need a longer AcceleratorOptions::timeout.",
       .rank = options_.rank});
}

// Never throws: what is said here follows something that counts more.
void JointSave::say(const std::string& name, const std::string& text) noexcept {
  try {
    options_.store->set(key(name), text);
  } catch (const std::exception&) {  // the store is gone, and with it rank 0
  }
}

std::vector<CheckpointFile> JointSave::write(const std::vector<FileToWrite>& mine) {
  std::vector<CheckpointFile> out;
  for (const FileToWrite& file : mine) out.push_back(draft_->write_file(file.name, file.fill));
  return out;
}

// On rank 0: everybody's entries.
std::vector<CheckpointFile> JointSave::gather(const std::string& own) {
  std::vector<CheckpointFile> out;
  add_entries(own, out);
  std::string problem;
  for (int rank = 1; rank < options_.size; ++rank) {
    const std::string said = wait_for(concat("entries/", rank), rank);
    if (said.starts_with('!')) {
      if (problem.empty()) problem = concat("rank ", rank, ": ", said.substr(1));
    } else {
      listeners_.push_back(rank);
      add_entries(said.substr(1), out);
    }
  }
  if (!problem.empty()) fail(problem);
  return out;
}

void JointSave::add_files_of_others(std::vector<CheckpointFile>& files) {
  std::set<std::string> known;
  for (const CheckpointFile& file : files) known.insert(file.path);
  std::vector<std::string> there;
  list_files(*options_.files, draft_->path(), "", there);
  for (const std::string& name : there) {
    if (!known.contains(name)) files.push_back(draft_->add_file(name));
  }
}

std::vector<std::string> JointSave::commit(CheckpointManifest manifest) {
  add_files_of_others(manifest.files);
  std::vector<std::string> notes = draft_->commit(std::move(manifest));
  if (options_.total_limit) {
    try {
      rotate_checkpoints(*options_.files, parent_directory(options_.path), *options_.total_limit,
                         file_name(options_.path));
    } catch (const std::exception& error) {
      notes.push_back(concat("old checkpoints are not removed yet: ", error_message(error)));
    }
  }
  return notes;
}

// This process may hold the store and be about to end: it stays until the others have heard what it says, or
// for a while.
void JointSave::tell(const std::string& name, const std::string& text, const std::vector<int>& listeners) {
  constexpr std::chrono::seconds kMostWait{10};
  say(name, text);
  const Deadline deadline = Deadline::after(kMostWait);
  try {
    for (const int rank : listeners) options_.store->get(key(concat("heard/", rank)), deadline.remaining());
  } catch (const std::exception&) {  // whoever is gone has nothing to hear
  }
}

std::vector<std::string> JointSave::finish(const std::vector<FileToWrite>& mine,
                                           CheckpointManifest manifest) {
  if (options_.size == 1) {
    manifest.files = write(mine);
    return commit(std::move(manifest));
  }
  Store& store = *options_.store;
  if (options_.rank > 0) {
    try {
      store.set(key(concat("entries/", options_.rank)), concat("=", entries_text(write(mine))));
    } catch (const std::exception& error) {
      say(concat("entries/", options_.rank), concat("!", problem_text(error)));
      throw;
    }
    const std::string verdict = wait_for("verdict", 0);
    say(concat("heard/", options_.rank), "=");
    if (verdict.starts_with('!')) fail(verdict.substr(1));
    return {};
  }
  std::vector<std::string> notes;
  try {
    std::exception_ptr own_problem;
    std::string own = "[]";
    try {
      own = entries_text(write(mine));
    } catch (const std::exception&) {
      own_problem = std::current_exception();
    }
    manifest.files = gather(own);  // whatever happened: nobody may still be writing when the draft goes
    if (own_problem) std::rethrow_exception(own_problem);
    // All are here, so all have read how the last save ended.
    if (!options_.former_topic.empty()) {
      store.remove(options_.former_topic + "/draft");
      store.remove(options_.former_topic + "/verdict");
      for (int rank = 1; rank < options_.size; ++rank) {
        store.remove(concat(options_.former_topic, "/entries/", rank));
        store.remove(concat(options_.former_topic, "/heard/", rank));
      }
    }
    notes = commit(std::move(manifest));
  } catch (const std::exception& error) {
    try {
      draft_->discard();
    } catch (const std::exception&) {  // the next save sweeps it
    }
    tell("verdict", concat("!", problem_text(error)), listeners_);
    throw;
  }
  tell("verdict", "=", listeners_);
  return notes;
}

}  // namespace accelerate::detail
