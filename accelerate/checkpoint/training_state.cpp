#include "accelerate/checkpoint/training_state.h"

#include <ATen/Functions.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <thread>

#include "accelerate/checkpoint/joint_save.h"
#include "accelerate/checkpoint/snapshot_buffer.h"
#include "accelerate/checkpoint/state_files.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/listing.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/comm/object_collectives.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/progress_bar.h"

namespace accelerate::detail {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string size_text(uint64_t bytes) {
  char text[32];
  if (bytes >= 1'000'000'000) {
    std::snprintf(text, sizeof text, "%.1f GB", static_cast<double>(bytes) / 1e9);
  } else if (bytes >= 1'000'000) {
    std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.1f KB", static_cast<double>(bytes) / 1e3);
  }
  return text;
}

// Signals are for the program's own threads: one that is begun meanwhile gets none.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

constexpr uint64_t kBarFromBytes = 250'000'000;  // what takes a second or more on an ordinary disk
constexpr uint64_t kMegabyte = 1'000'000;

// Tells a bar how many megabytes were written.
class CountedFile final : public WritableFile {
 public:
  CountedFile(WritableFile& file, ProgressBar& bar, uint64_t& bytes)
      : file_(file), bar_(bar), bytes_(bytes) {}
  void write(std::span<const std::byte> bytes) override {
    constexpr size_t kPiece = size_t{16} << 20;
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
      file_.write(piece);
      const uint64_t before = bytes_ / kMegabyte;
      bytes_ += piece.size();
      bar_.advance(static_cast<int64_t>(bytes_ / kMegabyte - before));
    }
  }
  void sync() override { file_.sync(); }
  void close() override { file_.close(); }

 private:
  WritableFile& file_;
  ProgressBar& bar_;
  uint64_t& bytes_;
};

void count_into(ProgressBar& bar, std::vector<FileToWrite>& files) {
  const auto bytes = std::make_shared<uint64_t>(0);
  for (FileToWrite& file : files) {
    file.fill = [fill = std::move(file.fill), &bar, bytes](WritableFile& to) {
      CountedFile counted(to, bar, *bytes);
      fill(counted);
    };
  }
}

// Runs `body` on the main process and hands its result to all.
std::string from_main(Communicator& communicator, const std::string& what,
                      const std::function<std::string()>& body) {
  if (communicator.size() == 1) return body();
  std::string said;
  std::exception_ptr problem;
  if (communicator.rank() == 0) {
    try {
      said = concat("=", body());
    } catch (const std::exception& error) {
      problem = std::current_exception();
      said = concat("!", error_message(error));
    }
  }
  said = broadcast_bytes(communicator, said, 0);
  if (problem) std::rethrow_exception(problem);
  if (said.starts_with('!')) {
    throw CheckpointError({.what = concat(what, ": the main process says: ", said.substr(1)),
                           .rank = communicator.rank(),
                           .echo = true});
  }
  return said.substr(1);
}

// Without its random generators a training goes on, with a warning, unless that is not wanted.
bool is_usable(const CheckpointVerification& result, bool strict) {
  return result.manifest &&
         std::all_of(result.problems.begin(), result.problems.end(),
                     [&](const auto& problem) { return !strict && is_random_states_file(problem.path); });
}

// What find() says: the path and, a line each, the files that are damaged all the same.
std::string found_text(const std::string& path, const CheckpointVerification& result) {
  std::string out = path;
  for (const CheckpointProblem& problem : result.problems) out += "\n" + problem.path;
  return out;
}

}  // namespace

struct TrainingState::Running {
  SnapshotBuffer snapshot;
  std::unique_ptr<JointSave> save;
  std::string path;
  std::thread thread;
  std::atomic<bool> done = false;
  std::exception_ptr problem;

  bool busy() const { return thread.joinable(); }
  void join() {
    if (!thread.joinable()) return;
    thread.join();
    save.reset();
  }
};

TrainingState::TrainingState(const ProcessContext& context, ProjectConfiguration project, FileSystem& files)
    : context_(context), project_(std::move(project)), files_(files), running_(std::make_unique<Running>()) {
  if (project_.total_limit && *project_.total_limit < 1) {
    throw ConfigError({.what = "ProjectConfiguration::total_limit",
                       .expected = "at least 1",
                       .got = std::to_string(*project_.total_limit),
                       .rank = context_.topology.rank});
  }
}

TrainingState::~TrainingState() {
  // An error is on its way: others may have ended, and nobody may come any more.
  if (running_->busy() && std::uncaught_exceptions() > 0) running_->save->give_up();
  running_->join();
  if (!running_->problem) return;
  try {
    std::rethrow_exception(running_->problem);
  } catch (const std::exception& error) {
    context_.logger->error(concat("the save in the background failed: ", error_message(error)),
                           LogRanks::kAll);
  }
}

void TrainingState::wait() {
  running_->join();
  if (running_->problem) std::rethrow_exception(std::exchange(running_->problem, nullptr));
}

void TrainingState::free_memory() {
  if (running_->done) running_->join();
  if (!running_->busy()) running_->snapshot.clear();
}

void TrainingState::check_destination(const std::string& path) {
  if (std::exchange(destination_checked_, true)) return;
  choose_path(path);
}

int64_t TrainingState::add_save_hook(StateHook hook) {
  save_hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

int64_t TrainingState::add_load_hook(StateHook hook) {
  load_hooks_.emplace_back(next_hook_, std::move(hook));
  return next_hook_++;
}

void TrainingState::remove_hook(int64_t number) {
  const auto is_it = [number](const auto& entry) { return entry.first == number; };
  std::erase_if(save_hooks_, is_it);
  std::erase_if(load_hooks_, is_it);
}

// All ranks wait, refuse or fail together.
void TrainingState::finish_earlier(const SaveStateOptions& options) {
  enum : int64_t { kFree, kBusy, kFailed };
  const bool is_busy = running_->busy() && !running_->done;
  at::Tensor state = at::zeros({1}, at::kLong);
  const auto agree = [&](int64_t own) {
    state.fill_(own);
    context_.communicator->all_reduce(state, ReduceOp::kMax);
    return state.item<int64_t>();
  };
  if (options.if_busy == IfBusy::kRefuse && agree(is_busy ? kBusy : kFree) == kBusy) {
    throw CheckpointError({.what = "save_state(): an earlier save still writes",
                           .got = is_busy ? running_->path : "it is another rank that does",
                           .hint = "Save less often, or use IfBusy::kWait.",
                           .rank = context_.topology.rank});
  }
  running_->join();
  if (agree(running_->problem ? kFailed : kFree) != kFailed) return;
  if (running_->problem) std::rethrow_exception(std::exchange(running_->problem, nullptr));
  throw CheckpointError({.what = "an earlier save in the background failed on another rank",
                         .rank = context_.topology.rank,
                         .echo = true});
}

std::string TrainingState::choose_path(const std::string& path) {
  return from_main(*context_.communicator, "save_state()", [&]() -> std::string {
    if (!path.empty()) return checkpoint_path(path);
    if (!project_.automatic_checkpoint_naming || project_.project_dir.empty()) {
      throw ConfigError({.what = "save_state() without a path",
                         .expected = "ProjectConfiguration with project_dir and automatic_checkpoint_naming",
                         .hint = "Give save_state() a folder, or set both."});
    }
    const std::string folder = path_in(project_.project_dir, "checkpoints");
    if (files_.exists(folder)) {
      const CheckpointListing listing = list_checkpoints(files_, folder);
      const ListedCheckpoint* newest = listing.newest();
      if (newest != nullptr && newest->number >= project_.iteration) {
        throw CheckpointError(
            {.what = concat("saving as ", checkpoint_name(project_.iteration), " in ", folder),
             .got = concat(newest->name, " there already, of another run"),
             .hint = "Call load_state() to go on from it, or choose another project_dir."});
      }
    }
    return path_in(folder, checkpoint_name(project_.iteration));
  });
}

void TrainingState::report(const std::string& path, const std::vector<std::string>& notes, uint64_t bytes,
                           double seconds) const {
  char time[32];
  std::snprintf(time, sizeof time, "%.2f s", seconds);
  context_.logger->info(
      concat("saved ", path, " (", size_text(bytes), " by the main process in ", time, ")"));
  for (const std::string& note : notes) context_.logger->warning(note);
}

std::string TrainingState::save(const TrainingParts& parts, const std::string& given,
                                const SaveStateOptions& options) {
  const auto start = Clock::now();
  finish_earlier(options);
  const bool is_automatic = given.empty();
  const std::string path = choose_path(given);
  if (parts.accumulation && parts.accumulation->pending() > 0) {
    context_.logger->warning(
        concat("save_state() in the middle of an accumulation window: the gradients of its ",
               parts.accumulation->pending(), " micro-batches are not saved"));
  }
  const std::string topic = concat("accelerate/save/", next_save_++);
  const int rank = context_.topology.rank;
  const int size = context_.communicator->size();
  auto joint = std::make_unique<JointSave>(
      JointSaveOptions{.files = &files_,
                       .path = path,
                       .store = context_.communicator->store(),
                       .rank = rank,
                       .size = size,
                       .topic = topic,
                       .former_topic = next_save_ > 1 ? concat("accelerate/save/", next_save_ - 2) : "",
                       .timeout = context_.communicator->timeout(),
                       .total_limit = is_automatic ? project_.total_limit : std::nullopt});
  CollectedState state;
  CheckpointManifest manifest{
      .iteration = project_.iteration, .world_size = size, .strategy = std::string(parts.strategy->name())};
  std::exception_ptr failure;
  try {
    for (const auto& [number, hook] : save_hooks_) hook(joint->draft_path());
    state = collect_state(parts, {.rank = rank,
                                  .size = size,
                                  .device = context_.device,
                                  .sharded = options.sharded,
                                  .snapshot = options.async ? &running_->snapshot : nullptr});
    for (const auto& optimizer : parts.optimizers)
      manifest.optimizer_steps = std::max(manifest.optimizer_steps, optimizer->steps_taken());
    if (!parts.loaders.empty()) manifest.epoch = parts.loaders.front()->state().epoch;
  } catch (const std::exception&) {
    failure = std::current_exception();
  } catch (...) {
    failure =
        std::make_exception_ptr(Error({.what = "a hook threw what is no std::exception", .rank = rank}));
  }
  // The others are on their way, and must be told where they wait for this rank's files.
  if (failure) state.files = {{"failed", [failure](WritableFile&) { std::rethrow_exception(failure); }}};
  if (is_automatic) ++project_.iteration;
  if (!options.async || failure) {
    ProgressBar bar(
        static_cast<int64_t>(state.bytes / kMegabyte), "saving",
        {.logger = context_.logger, .shown = rank == 0 && state.bytes >= kBarFromBytes, .unit = "MB"});
    count_into(bar, state.files);
    const auto notes = joint->finish(state.files, std::move(manifest));
    bar.finish();
    report(path, notes, state.bytes, seconds_since(start));
    return path;
  }
  Running& running = *running_;
  running.save = std::move(joint);
  running.path = path;
  running.done = false;
  const BlockedSignals blocked;
  running.thread = std::thread(
      [this, &running, start, state = std::move(state), manifest = std::move(manifest)]() mutable {
        try {
          const auto notes = running.save->finish(state.files, std::move(manifest));
          report(running.path, notes, state.bytes, seconds_since(start));
        } catch (...) {
          running.problem = std::current_exception();
        }
        state.files.clear();
        running.done = true;
      });
  return path;
}

std::string TrainingState::find(const std::string& given, bool must_exist, const LoadStateOptions& options) {
  const VerifyLevel level = options.verify;
  const bool strict = options.strict;
  FileSystem& files = system_files();
  if (!given.empty()) {
    const std::string path = checkpoint_path(given);
    try {
      recover_folder(files, parent_directory(path));  // gives it its name back after a crash
    } catch (const CheckpointError&) {                // a folder that can't be written to
    }
    const CheckpointVerification result = verify_checkpoint(files, path, level);
    if (!is_usable(result, strict)) {
      throw CheckpointError({.what = concat("the checkpoint ", path, " can't be loaded: ", result.reason()),
                             .hint = "`accel checkpoint inspect` shows what is in it."});
    }
    return found_text(path, result);
  }
  if (project_.project_dir.empty()) {
    throw ConfigError({.what = "load_state() without a path",
                       .expected = "a ProjectConfiguration with project_dir",
                       .hint = "Give load_state() the folder of a checkpoint, or set project_dir."});
  }
  const std::string folder = path_in(project_.project_dir, "checkpoints");
  std::string reasons;
  if (files.exists(folder)) {
    find_newest_checkpoint(files, folder);  // puts right what saves that died left behind
    const CheckpointListing listing = list_checkpoints(files, folder);
    const auto pass_over = [&](const std::string& name, const std::string& reason) {
      context_.logger->warning(concat("passing over ", path_in(folder, name), ": ", reason));
      reasons += concat(reasons.empty() ? "" : "; ", name, ": ", reason);
    };
    std::map<int64_t, std::string, std::greater<>> paths;  // the newest first
    for (const ListedCheckpoint& entry : listing.checkpoints) paths[entry.number] = entry.path;
    for (const SkippedEntry& entry : listing.skipped) {
      const auto number = checkpoint_number(entry.name);
      if (!number) {
        pass_over(entry.name, entry.reason);
      } else {
        paths.emplace(*number, path_in(folder, entry.name));  // it may lack no more than can be done without
      }
    }
    // The next one is numbered after all that are there, so that damaged ones never are in its way.
    if (!paths.empty()) project_.iteration = std::max(project_.iteration, paths.begin()->first + 1);
    for (const auto& [number, path] : paths) {
      const CheckpointVerification result = verify_checkpoint(files, path, level);
      if (is_usable(result, strict)) return found_text(path, result);
      pass_over(checkpoint_name(number), result.reason());
    }
  }
  if (!must_exist) return "";
  throw CheckpointError({.what = concat("no complete checkpoint in ", folder),
                         .got = reasons,
                         .hint = "Train and save one first, or give load_state() a path."});
}

std::optional<LoadedState> TrainingState::load(const TrainingParts& parts, const std::string& given,
                                               bool must_exist, const LoadStateOptions& options) {
  finish_earlier({});
  Communicator& communicator = *context_.communicator;
  const std::string found =
      from_main(communicator, "load_state()", [&] { return find(given, must_exist, options); });
  if (found.empty()) return std::nullopt;
  std::vector<std::string> damaged = split(found, '\n');
  const std::string path = damaged.front();
  damaged.erase(damaged.begin());
  LoadedState loaded{.path = path};
  std::exception_ptr problem;
  std::string text;
  try {
    load_parts(parts, path, options, damaged, loaded);
  } catch (const std::exception& error) {
    problem = std::current_exception();
    text = error_message(error);
  } catch (...) {
    problem = std::current_exception();
    text = "an exception that is no std::exception";
  }
  if (communicator.size() > 1) {
    const std::vector<std::string> all = all_gather_bytes(communicator, text);
    for (size_t rank = 0; rank < all.size() && !problem; ++rank) {
      if (all[rank].empty()) continue;
      throw CheckpointError({.what = concat("loading ", path, " failed on rank ", rank, ": ", all[rank]),
                             .rank = communicator.rank(),
                             .echo = true});
    }
  }
  if (problem) std::rethrow_exception(problem);
  project_.iteration = std::max(project_.iteration, loaded.iteration + 1);
  context_.logger->info(
      concat("loaded ", path, ": ", loaded.optimizer_steps, " optimizer steps, epoch ", loaded.epoch));
  return loaded;
}

}  // namespace accelerate::detail
