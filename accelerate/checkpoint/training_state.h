#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/registered_object.h"
#include "accelerate/checkpoint/store/verify.h"
#include "accelerate/comm/process_context.h"
#include "accelerate/core/project_configuration.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/optim/accumulation.h"
#include "accelerate/optim/prepared_optimizer.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/strategy/prepared_model.h"
#include "accelerate/strategy/strategy.h"

namespace accelerate {

// Note [What a checkpoint holds]
// A folder; names are HF Accelerate's where there are such. Everything in it can be read without us.
//   manifest.json                  the files with their sizes and checksums, step, epoch, ranks; written last
//   model.safetensors              weights and buffers of the first prepared model; model_1.safetensors, ...
//   optimizer.json                 type and options (lr, betas, ...) of its parameter groups, by the names of
//   optimizer.safetensors          the parameters, and their moments; optimizer_1.json, ...
//   training_state.json            schedulers, loaders, gradient scaler, step counts
//   random_states_<rank>.safetensors   generators of the CPU and of the rank's device
//   custom_checkpoint_<i>.bin      objects given to register_for_checkpointing()
// With SaveStateOptions::sharded the tensors lie in model-0000<r>-of-0000<n>.safetensors with
// model.safetensors.index.json beside them, as large models on the Hugging Face hub do; likewise the
// optimizer's. All is found by names of parameters, so that it loads into any strategy and any number of
// ranks.

/// What save_state() does when an earlier asynchronous save still writes.
enum class IfBusy {
  kWait,    ///< for it to end
  kRefuse,  ///< throw CheckpointError
};

/// Options of Accelerator::save_state().
struct SaveStateOptions {
  /// Copy the state into host memory and return; a thread writes it while training goes on. A write that
  /// fails throws at the next save_state(), load_state(), wait_for_save() or end_training().
  bool async = false;
  IfBusy if_busy = IfBusy::kWait;
  /// Every rank writes its part of the weights and of the optimizers' state, instead of the main process all
  /// of them. Faster with several disks or machines; with async, each rank copies its part only.
  bool sharded = false;
};

/// Options of Accelerator::load_state().
struct LoadStateOptions {
  /// A random generator that can't be restored is an error; else a warning.
  bool strict = false;
  /// kFull reads every file once more beforehand and compares checksums, so that a checkpoint with flipped
  /// bits is found before anything is loaded; kQuick looks at sizes only.
  VerifyLevel verify = VerifyLevel::kFull;
};

/// What was loaded.
struct LoadedState {
  std::string path;
  int64_t iteration = 0;        ///< number of the checkpoint
  int64_t optimizer_steps = 0;  ///< taken until it was saved
  int64_t epoch = 0;            ///< that was running
  int64_t world_size = 1;       ///< ranks that wrote it
};

/// Called on every rank with the folder of the checkpoint: after the draft was made and before it is
/// complete (a hook's own files become part of it), or before it is loaded.
using StateHook = std::function<void(const std::string& folder)>;

namespace detail {

/// How a scheduler's state is reached, whatever its type.
struct SchedulerSlot {
  std::function<std::string()> save;
  std::function<void(const std::string& json)> load;
};

/// All that a checkpoint holds, in the order of prepare().
struct TrainingParts {
  Strategy* strategy = nullptr;
  std::vector<std::shared_ptr<ModelCore>> models;
  std::vector<std::shared_ptr<OptimizerCore>> optimizers;
  std::vector<SchedulerSlot> schedulers;
  std::vector<std::shared_ptr<LoaderCore>> loaders;
  std::vector<RegisteredObject> objects;
  std::shared_ptr<GradScaler> scaler;  // null but for fp16
  std::shared_ptr<Accumulation> accumulation;
};

/// Saves and loads the state of a training. One thread a rank; the file system is shared by all machines.
class TrainingState {
 public:
  /// `files`: where checkpoints are written.
  TrainingState(const ProcessContext& context, ProjectConfiguration project, FileSystem& files);
  /// Waits for a save that still writes; logs how it failed if nobody was told.
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  /// Collective. See Accelerator::save_state().
  std::string save(const TrainingParts& parts, const std::string& path, const SaveStateOptions& options);
  /// Collective. See Accelerator::load_state(). Nothing if there is no checkpoint and `must_exist` is false.
  std::optional<LoadedState> load(const TrainingParts& parts, const std::string& path, bool must_exist,
                                  const LoadStateOptions& options);
  /// Local. Waits for the asynchronous save, and throws what it threw.
  void wait();
  /// Gives the memory that asynchronous saves copy to back.
  void free_memory();

  /// Returns a number for remove_hook().
  int64_t add_save_hook(StateHook hook);
  int64_t add_load_hook(StateHook hook);
  void remove_hook(int64_t number);

  /// Collective, the first time it is called: whether save() could choose where to save.
  /// @throws as save() without a place to save to, or for a folder that holds another run.
  void check_destination(const std::string& path);

  const ProjectConfiguration& project() const { return project_; }
  FileSystem& files() const { return files_; }

 private:
  struct Running;
  struct Collector;
  std::string choose_path(const std::string& path);
  void finish_earlier(const SaveStateOptions& options);
  std::string find(const std::string& path, bool must_exist, const LoadStateOptions& options);
  void load_parts(const TrainingParts& parts, const std::string& path, const LoadStateOptions& options,
                  const std::vector<std::string>& damaged, LoadedState& loaded);
  void load_random_states(const std::string& path, const LoadStateOptions& options, const LoadedState& loaded,
                          bool is_damaged);
  void report(const std::string& path, const std::vector<std::string>& notes, uint64_t bytes,
              double seconds) const;

  ProcessContext context_;
  ProjectConfiguration project_;
  FileSystem& files_;
  std::vector<std::pair<int64_t, StateHook>> save_hooks_;
  std::vector<std::pair<int64_t, StateHook>> load_hooks_;
  int64_t next_hook_ = 0;
  int64_t next_save_ = 0;
  bool destination_checked_ = false;
  std::unique_ptr<Running> running_;
};

}  // namespace detail
}  // namespace accelerate
