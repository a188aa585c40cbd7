#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/checkpoint/training_state.h"
#include "accelerate/checkpoint/weights.h"
#include "accelerate/comm/object_collectives.h"
#include "accelerate/comm/process_context.h"
#include "accelerate/comm/serializer.h"
#include "accelerate/comm/tensor_structure.h"
#include "accelerate/comm/turns.h"
#include "accelerate/config/config.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/split_between.h"
#include "accelerate/environment/env_vars.h"
#include "accelerate/optim/accumulation.h"
#include "accelerate/optim/scheduler_state.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/prepare.h"
#include "accelerate/strategy/strategy.h"
#include "accelerate/tracking/profiler.h"
#include "accelerate/tracking/trackers/progress_bar.h"
#include "accelerate/tracking/trackers/tracker_set.h"

namespace accelerate {

/// What code may say; everything left out comes from the environment, the configuration file, or what is
/// detected.
struct AcceleratorOptions {
  /// A configuration file. Default: what the launcher passes, ACCELERATE_CONFIG_FILE, or the user's default
  /// file.
  std::optional<std::string> config_file = std::nullopt;
  /// Run on the CPU although there are GPUs.
  std::optional<bool> cpu = std::nullopt;
  /// "no", "bf16" or "fp16": the precision in which prepared models run forward, see autocast(). Weights and
  /// optimizer states stay in float32; under fp16 gradients are scaled.
  std::optional<std::string> mixed_precision = std::nullopt;
  /// How gradients are scaled under fp16.
  GradScalerOptions grad_scaler = {};
  /// Outputs of prepared models in half precision are converted to float32.
  bool convert_outputs_to_fp32 = true;
  /// Micro-batches per optimizer step, see accumulate().
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// The last batch of a loader ends an accumulation window, however short.
  bool sync_with_dataloader = true;
  /// Gradients are reduced in every micro-batch, not only in the one that ends its window: more traffic, for
  /// strategies that would else have to keep whole gradients. The result is the same.
  bool sync_each_batch = false;
  DataLoaderConfiguration dataloader = {};
  /// "auto" (ddp with several ranks, else single), "single" or "ddp".
  std::string strategy = "auto";
  /// Options of data parallel training.
  DdpOptions ddp = {};
  /// SGD, Adam, AdamW and Adagrad step by ATen's fused kernels, in one pass over memory. Results equal those
  /// of the optimizer's own step() up to rounding, and its state is the same. Off: always its own step().
  bool fused_optimizer = true;
  /// Move models and batches to this rank's device.
  bool device_placement = true;
  /// The longest that any wait for other ranks takes.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Waits in a collective that take longer are told about, see CommunicatorOptions::watchdog_notice.
  std::chrono::milliseconds watchdog_notice = std::chrono::seconds(60);
  /// "auto", "shm", "hierarchical", "gloo", "mpi" or "nccl"; see CommunicatorOptions.
  std::string backend = "auto";
  /// How NCCL runs.
  NcclOptions nccl = {};

  /// Where log() sends values: "jsonl", "csv", "tensorboard", "mlflow", "all", and trackers of your own.
  std::vector<LogWith> log_with = {};
  /// The folders that checkpoints and trackers go to.
  ProjectConfiguration project_config = {};

  // For programs in which ranks are no processes (tests, embedding). Default: this process's own.
  std::optional<EnvVars> environment = std::nullopt;
  std::optional<Topology> topology = std::nullopt;
  std::shared_ptr<Communicator> communicator = nullptr;
  std::shared_ptr<Logger> logger = nullptr;
  /// Where checkpoints are written; must outlive the Accelerator. They are read from the system's files.
  FileSystem* files = nullptr;
};

/// Options of Accelerator::join_uneven_inputs().
struct JoinOptions {
  /// DataLoaderConfiguration::even_batches of the loops in the body; default: as prepared.
  std::optional<bool> even_batches = std::nullopt;
};

/// One micro-batch of gradient accumulation, from Accelerator::accumulate() to the end of the scope.
class [[nodiscard]] AccumulateScope {
 public:
  /// `accumulation` is told when the scope ends; null for no_sync().
  explicit AccumulateScope(std::vector<std::shared_ptr<detail::ModelCore>> local_models,
                           std::shared_ptr<Accumulation> accumulation = nullptr);
  ~AccumulateScope();
  AccumulateScope(const AccumulateScope&) = delete;
  AccumulateScope& operator=(const AccumulateScope&) = delete;

 private:
  std::vector<std::shared_ptr<detail::ModelCore>> local_models_;
  std::shared_ptr<Accumulation> accumulation_;
};

/// Runs one training loop on one device, on all devices of a machine, or on many machines. Make one at the
/// start of main(), give it model, optimizer, loader and scheduler, and train as usual. One thread at a time;
/// several Accelerators in one process do not know of each other.
class Accelerator {
 public:
  /// Collective over the job: finds out which rank this is and meets the others.
  /// @throws ConfigError for a configuration that can't be met, CommError when ranks do not come.
  explicit Accelerator(AcceleratorOptions options = {});
  /// Collective. As above with the configuration file at a path: `Accelerator accelerator("config.yaml")`.
  template <std::convertible_to<std::string> Path>
  explicit Accelerator(const Path& config_file, AcceleratorOptions options = {})
      : Accelerator(with_config_file(config_file, std::move(options))) {}
  ~Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  // Who and where.
  int num_processes() const { return context().topology.world_size; }
  int process_index() const { return context().topology.rank; }
  int local_process_index() const { return context().topology.local_rank; }
  bool is_main_process() const { return process_index() == 0; }
  bool is_local_main_process() const { return local_process_index() == 0; }
  bool is_last_process() const { return process_index() + 1 == num_processes(); }
  at::Device device() const { return context().device; }
  const ProcessContext& context() const;
  operator const ProcessContext&() const { return context(); }
  const Config& config() const;
  const Strategy& strategy() const;
  Logger& logger() const { return *context().logger; }
  Communicator& communicator() const { return *context().communicator; }

  /// Collective. Takes models, optimizers, loaders and schedulers in any number and order, and returns their
  /// handles in the same order: a tuple, or the handle itself for a single argument. Models move to this
  /// rank's device. An argument that is a handle already comes back as it is.
  /// @throws ConfigError for an optimizer whose parameters belong to no prepared model, or models that differ
  /// between ranks; DataError for a loader's batch size.
  template <class... Ts>
  auto prepare(Ts&&... objects) {
    static_assert(
        (Preparable<std::remove_cvref_t<Ts>> && ...),
        "accelerate: prepare() takes a module holder (TORCH_MODULE) or shared_ptr to a module, a torch "
        "optimizer, a torch LR scheduler, or an accelerate::DataLoader");
    std::tuple<std::optional<detail::PreparedType<Ts>>...> handles;
    auto given = std::forward_as_tuple(std::forward<Ts>(objects)...);
    for (const auto stage :
         {detail::PrepareStage::kReady, detail::PrepareStage::kLoader, detail::PrepareStage::kModel,
          detail::PrepareStage::kOptimizer, detail::PrepareStage::kScheduler}) {
      prepare_stage(stage, handles, given, std::index_sequence_for<Ts...>());
    }
    return std::apply(
        [](auto&... ready) {
          if constexpr (sizeof...(ready) == 1) {
            return (std::move(*ready), ...);
          } else {
            return std::make_tuple(std::move(*ready)...);
          }
        },
        handles);
  }

  /// Begins the next micro-batch; hold the result for the rest of the loop body. Gradients of the models stay
  /// on this rank until the micro-batch that ends a window of gradient_accumulation_steps; optimizers and
  /// schedulers act only then. The last batch of a loader ends a window, and the loss is divided by the
  /// window's real size.
  template <class... Ms>
  AccumulateScope accumulate(const PreparedModel<Ms>&... models) {
    return begin_micro_batch({models.core()...});
  }
  /// While the result lives, backward leaves the models' gradients on this rank.
  template <class... Ms>
  AccumulateScope no_sync(const PreparedModel<Ms>&... models) {
    return AccumulateScope({models.core()...});
  }
  /// Collective. Runs `body`, in which ranks may train the models on different numbers of batches: a rank
  /// whose body has ended takes part in the others' reductions with zeros until all have. Then weights,
  /// buffers and the state of the prepared optimizers become those of a rank that trained to the end. The
  /// body may run no other collectives (gather, reduce, ...). HF's name; PyTorch's Join.
  /// @throws what `body` throws.
  template <class Body, class... Ms>
  void join_uneven_inputs(Body&& body, const JoinOptions& options, const PreparedModel<Ms>&... models) {
    join({models.core()...}, body, options);
  }

  /// Local. Forgets all prepared models, optimizers and loaders, and gives memory that torch keeps for reuse
  /// back to the device. Handles stay usable as long as they live; drop them too to free what they hold. HF's
  /// name; clear() is the same.
  void free_memory();
  void clear() { free_memory(); }

  /// Collective. The ranks' random generators of the CPU become that of rank `root`: for draws that all ranks
  /// must make alike. Loaders need none of it.
  void synchronize_rng_states(int root = 0);

  /// This rank's part of `inputs` (a vector, a tensor along its first dimension, or a map of these, all of
  /// one length): the first ranks get one more where the length does not divide. With `apply_padding` all
  /// parts are made equally long by repeating the last input, which gather() needs.
  template <class T>
  T split_between_processes(const T& inputs, bool apply_padding = false) const {
    return split_between(inputs, {process_index(), num_processes(), apply_padding});
  }

  /// `loader`, whose next loop leaves out its first `count` batches.
  template <class D>
  PreparedDataLoader<D> skip_first_batches(PreparedDataLoader<D> loader, int64_t count) const {
    loader.skip_first_batches(count);
    return loader;
  }

  /// Within a loop over a prepared loader (the innermost): this is its last batch. Else false.
  bool end_of_dataloader() const;
  /// Samples of that loop's last round that are real, the rest being repeats to make the ranks even; 0: all
  /// are; -1: outside of loops.
  int64_t remainder() const;
  /// True on the micro-batch that ends its window.
  bool sync_gradients() const;
  int64_t gradient_accumulation_steps() const;

  /// Collective on micro-batches that end a window. loss.backward() with all that the strategy needs; divides
  /// the loss by the number of micro-batches in the window. `loss` is a scalar.
  /// @throws CommError naming the ranks that are gone, ConfigError naming parameters that the loss does not
  /// use.
  void backward(const at::Tensor& loss, bool retain_graph = false, bool create_graph = false);

  /// A scope in which operations run in the configured mixed precision, for computations outside of a
  /// prepared model's forward, such as a loss. Does nothing without mixed precision.
  [[nodiscard]] std::unique_ptr<AutocastGuard> autocast() const;
  /// The gradient scaler, or null but for fp16.
  GradScaler* scaler() const;
  /// Collective under fp16. Divides the gradients by the scale, once a step, for those who read them before
  /// step(); the clipping functions do it by themselves.
  void unscale_gradients();
  /// True if the last step of a prepared optimizer was left out, since a gradient was not finite (fp16).
  bool optimizer_step_was_skipped() const;

  /// Scales all gradients of the prepared model so that their total norm is at most `max_norm`; returns the
  /// norm before as a 0-d tensor. Does nothing and returns 0 on micro-batches that do not end a window.
  /// `norm_type` is p > 0 of the p-norm, or infinity. Collective where parameters are sharded.
  /// @throws ConfigError for a norm that can't be; with `error_if_nonfinite`, which costs a second look at
  /// the gradients and a wait for the device, Error on all ranks when the norm is not finite: it names the
  /// first parameter at fault, and the gradients are as they were.
  template <class M>
  at::Tensor clip_grad_norm_(const PreparedModel<M>& model, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    return clip_grad_norm_(model.parameters(), max_norm, norm_type, error_if_nonfinite);
  }
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                             double norm_type = 2.0, bool error_if_nonfinite = false);
  /// Limits every gradient element to [-clip_value, clip_value], on the same micro-batches.
  template <class M>
  void clip_grad_value_(const PreparedModel<M>& model, double clip_value) {
    clip_grad_value_(model.parameters(), clip_value);
  }
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// Collective. The ranks' tensors joined along dimension 0 in rank order, for every tensor in `value`;
  /// shapes and dtypes must be equal on all ranks. 0-d tensors become 1-d.
  template <class T>
  T gather(T value) {
    return map_tensors(std::move(value), [&](const at::Tensor& tensor) { return gather_tensor(tensor); });
  }
  /// Collective. As gather(); in the last step of a loader, the samples that were repeated to make the ranks
  /// even are left out again, so that over an epoch every sample comes exactly once.
  template <class T>
  T gather_for_metrics(T value) {
    return map_tensors(std::move(value),
                       [&](const at::Tensor& tensor) { return gather_tensor_for_metrics(tensor); });
  }
  /// Collective. Every tensor in `value` reduced over the ranks; equal on all of them. The input is left
  /// alone.
  template <class T>
  T reduce(T value, ReduceOp op = ReduceOp::kSum) {
    return map_tensors(std::move(value), [&](const at::Tensor& tensor) { return reduce_tensor(tensor, op); });
  }
  /// Collective. Every tensor in `value` as rank `root` has it.
  template <class T>
  T broadcast(T value, int root = 0) {
    return map_tensors(std::move(value),
                       [&](const at::Tensor& tensor) { return broadcast_tensor(tensor, root); });
  }
  /// Collective. Every tensor in `value` filled up along one dimension to the longest of all ranks, so that
  /// it can be gathered.
  /// @throws CommError when the ranks' shapes differ in more than that, listing them.
  template <class T>
  T pad_across_processes(T value, const PadOptions& options = {}) {
    return map_tensors(std::move(value), [&](const at::Tensor& tensor) {
      return accelerate::pad_across_processes(communicator(), tensor, options);
    });
  }
  /// Collective. All ranks' values in rank order, in one vector; ranks may give different numbers of them.
  template <Serializable T>
  std::vector<T> gather_object(const std::vector<T>& values) {
    std::vector<T> out;
    for (const std::string& bytes : all_gather_bytes(communicator(), detail::to_bytes(values))) {
      for (T& value : detail::from_bytes<std::vector<T>>(bytes)) out.push_back(std::move(value));
    }
    return out;
  }
  /// Collective. The value of rank `root`; of any type that can be bytes (Note [Values as bytes]).
  template <Serializable T>
  T broadcast_object(const T& value, int root = 0) {
    return detail::from_bytes<T>(
        broadcast_bytes(communicator(), process_index() == root ? detail::to_bytes(value) : "", root));
  }
  /// Collective. Returns once all ranks are here.
  void wait_for_everyone() { communicator().barrier(); }

  /// Collective. Runs `body` on the main process, then on the others: for what one process downloads or
  /// prepares and all use. Waiting has no limit, however long the body takes.
  /// @throws what `body` throws, on every rank.
  void main_process_first(const std::function<void()>& body) {
    first_then_others(context(), First::kMain, body);
  }
  /// As main_process_first(), on each machine by itself.
  void local_main_process_first(const std::function<void()>& body) {
    first_then_others(context(), First::kLocalMain, body);
  }
  /// Runs `body` on the main process only.
  template <class F>
  void on_main_process(F&& body) {
    if (is_main_process()) body();
  }
  /// Runs `body` on the first process of each machine only.
  template <class F>
  void on_local_main_process(F&& body) {
    if (is_local_main_process()) body();
  }
  /// Runs `body` on the last process only.
  template <class F>
  void on_last_process(F&& body) {
    if (is_last_process()) body();
  }
  /// Runs `body` on process `index` only.
  template <class F>
  void on_process(int index, F&& body) {
    if (process_index() == index) body();
  }

  /// Local. Raises a flag that the next check_trigger() of all ranks sees: how one rank stops all (early
  /// stopping).
  void set_trigger();
  /// Collective. True on every rank if any rank has called set_trigger() since the last check.
  bool check_trigger();

  /// Collective. With the backward after it, the models' gradients are reduced, although it stands in
  /// no_sync() or within an accumulation window. HF's name.
  template <class M>
  void trigger_sync_in_backward(const PreparedModel<M>& model) {
    model.core()->strategy->set_gradient_sync(true);
  }

  /// One line on standard output, from the local main process only.
  template <class... Args>
  void print(const Args&... args) {
    if (is_local_main_process()) print_line(concat(args...));
  }

  /// Local. Records what this rank does and how long it takes, from here to the end of the scope or stop();
  /// see Profiler. HF's name and options.
  /// @throws as Profiler's constructor.
  [[nodiscard]] Profiler profile(ProfileOptions options = {}) const {
    return Profiler(context(), std::move(options));
  }

  /// The user's own model back.
  template <class M>
  M& unwrap_model(PreparedModel<M>& model) const {
    return model.unwrap();
  }

  /// Local. Begins a run of the project on all trackers of log_with, which are told `config` (learning rate,
  /// batch size, ...) and get options by their names: {{"tensorboard", {{"flush_secs", "10"}}}}.
  /// @throws ConfigError for what can't be used; on the main process only where a tracker itself finds out.
  void init_trackers(const std::string& project_name, const TrackedValues& config = {},
                     const TrackerInitKwargs& init_kwargs = {}) {
    trackers().init(project_name, config, init_kwargs);
  }
  /// Local. Hands values to all trackers, from the main process: `log({{"loss", loss}, {"epoch", 3}}, step)`.
  /// Never waits for a disk or a network; for a device where a value is a tensor on one, on every rank.
  void log(const TrackedValues& values, std::optional<int64_t> step = std::nullopt) {
    trackers().log(values, step);
  }
  /// The tracker of that name; one that does nothing on ranks that do not have it.
  Tracker& get_tracker(std::string_view name) { return trackers().get(name); }
  /// All trackers, also for texts, histograms and pictures: `trackers().log_image("digit", image, step)`.
  TrackerSet& trackers() const;
  /// Local. Ends the run: waits for the last asynchronous save, writes and sends what is left. An Accelerator
  /// that is destroyed without it ends its run as failed.
  /// @throws CheckpointError where the save failed, else Error listing what trackers could not keep.
  void end_training();
  /// Local. A bar on the local main process: `auto bar = accelerator.progress_bar(loader.size(), "epoch
  /// 1");`, then bar.advance() in the loop.
  ProgressBar progress_bar(std::optional<int64_t> total, std::string description = {}) const {
    return ProgressBar(total, std::move(description),
                       {.logger = context().logger, .shown = is_local_main_process()});
  }

  /// Collective. Writes the weights and buffers to `directory`/model.safetensors (created where missing), or
  /// to several files with their index, from the main process, under the module's own names: what Python's
  /// safetensors and transformers read. Returns the path of the file or index once all is complete, on every
  /// rank.
  /// @throws CheckpointError on every rank when writing fails.
  template <class M>
  std::string save_model(const PreparedModel<M>& model, const std::string& directory,
                         const SaveWeightsOptions& options = {}) {
    return save_module(*model.core()->module, directory, options);
  }
  /// Collective. Loads weights and buffers from what WeightSource::open() takes: what save_model(), Python's
  /// safetensors or transformers, torch.save or torch::save wrote. Each rank reads the files, straight to its
  /// device.
  /// @throws CheckpointError on every rank, as load_weights().
  template <class M>
  LoadWeightsReport load_model(const PreparedModel<M>& model, const std::string& path,
                               const LoadWeightsOptions& options = {}) {
    return load_module(*model.core()->module, path, options);
  }

  /// Collective. Writes the whole state of the training as one checkpoint, see Note [What a checkpoint
  /// holds]: all that was prepared, random generators, loader positions, counters and registered objects.
  /// Without `path`: `project_dir`/checkpoints/checkpoint_<iteration>, of which total_limit stay. The folder
  /// appears under its name as a whole or not at all; a checkpoint that was there is replaced likewise.
  /// Returns the path.
  /// @throws ConfigError without a path or automatic naming; CheckpointError on all ranks when one fails,
  /// with what was there before untouched; what an earlier asynchronous save threw.
  std::string save_state(const std::string& path = "", const SaveStateOptions& options = {}) {
    return training_state().save(training_parts(), path, options);
  }
  /// Collective. Goes on from a checkpoint; call it after prepare(). Without `path` the newest complete one
  /// of `project_dir`/checkpoints; damaged ones are named and passed over. Loops over prepared loaders go on
  /// at the batch after the last one that was handed out.
  /// @throws CheckpointError on all ranks: none there, damaged, or other objects than were saved. What was
  /// loaded before the error stays.
  LoadedState load_state(const std::string& path = "", const LoadStateOptions& options = {}) {
    return *training_state().load(training_parts(), path, /*must_exist=*/true, options);
  }
  /// Collective. load_state() where there is a checkpoint, else nothing: the way to begin a run that may be
  /// started again.
  std::optional<LoadedState> resume(const LoadStateOptions& options = {}) {
    return training_state().load(training_parts(), "", /*must_exist=*/false, options);
  }
  /// Local. Waits until the last asynchronous save is complete.
  /// @throws CheckpointError when it failed.
  void wait_for_save() { training_state().wait(); }

  /// Local, on all ranks alike. The object's state goes into checkpoints; it must live as long as they are
  /// saved. See Checkpointable for what can be. `name` is that of its file (default custom_checkpoint_<i>).
  /// The main process's state counts, unless `per_rank`.
  template <Checkpointable T>
  void register_for_checkpointing(T& object, const std::string& name = "", bool per_rank = false) {
    register_object(detail::register_object(object), name, per_rank);
  }
  /// Local, on all ranks alike. Runs `hook` in each save_state() or load_state(), see StateHook. Returns a
  /// number for remove_state_hook().
  int64_t register_save_state_pre_hook(StateHook hook) {
    return training_state().add_save_hook(std::move(hook));
  }
  int64_t register_load_state_pre_hook(StateHook hook) {
    return training_state().add_load_hook(std::move(hook));
  }
  void remove_state_hook(int64_t number) { training_state().remove_hook(number); }

  /// Collective. True on every rank once any has been sent SIGTERM, which ends no rank by itself from the
  /// first call on (a second one does).
  bool preemption_requested();
  /// Collective. Does nothing until a rank is sent SIGTERM (a scheduler wants the machine, `kill`); then
  /// saves the state and throws Preempted, whose exit code is 75: `accel launch --max_restarts` or the
  /// scheduler starts the program again, and resume() goes on. Call it at the end of each step. An
  /// accumulation window is finished first, and so is an epoch whose last batch this is, with what the
  /// program does after it. Whoever sends the signal must leave time for that: `accel launch --grace_period`
  /// has 5 s by default.
  /// @throws ConfigError, at the first call already, as save_state() without a place to save to.
  void save_if_preempted(const std::string& path = "");

 private:
  // `objects` holds references of the kind that prepare() was called with, so that a variable is not moved
  // from.
  template <class... Handles, class... Refs, size_t... I>
  void prepare_stage(detail::PrepareStage stage, std::tuple<Handles...>& handles,
                     std::tuple<Refs...>& objects, std::index_sequence<I...>) {
    ((detail::prepare_stage<std::remove_cvref_t<Refs>>() == stage
          ? (void)std::get<I>(handles).emplace(prepare_one(static_cast<Refs>(std::get<I>(objects))))
          : (void)0),
     ...);
  }

  template <class T>
  detail::PreparedType<T> prepare_one(T&& object) {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (AlreadyPrepared<Plain>) {
      return object;
    } else if constexpr (PreparableLoader<Plain>) {
      return {object.dataset(), make_loader_core(detail::dataset_size(object.dataset()), object.options())};
    } else if constexpr (PreparableModel<Plain>) {
      return {object, make_model_core(detail::ModulePointer<Plain>::get(object))};
    } else if constexpr (PreparableOptimizer<Plain>) {
      auto held = detail::hold(std::forward<T>(object));
      auto core = make_optimizer_core(held);
      return {std::move(held), std::move(core)};
    } else {
      auto held = detail::hold(std::forward<T>(object));
      std::vector<std::shared_ptr<detail::OptimizerCore>> optimizers = optimizer_cores();
      if constexpr (std::is_base_of_v<torch::optim::LRScheduler, typename detail::Pointee<Plain>::Type>) {
        optimizers = detail::optimizers_of(*held, optimizers);
      }
      add_scheduler({.save = [held] { return scheduler_state(*held); },
                     .load = [held](const std::string& json) { load_scheduler_state(*held, json); }},
                    held.get());
      return {std::move(held), accumulation(), std::move(optimizers), scheduler_rule()};
    }
  }

  static AcceleratorOptions with_config_file(std::string path, AcceleratorOptions options) {
    options.config_file = std::move(path);
    return options;
  }
  std::shared_ptr<detail::LoaderCore> make_loader_core(std::optional<int64_t> dataset_size,
                                                       const DataLoaderOptions& options);
  std::shared_ptr<detail::ModelCore> make_model_core(std::shared_ptr<torch::nn::Module> module);
  std::shared_ptr<detail::OptimizerCore> make_optimizer_core(
      std::shared_ptr<torch::optim::Optimizer> optimizer);
  std::shared_ptr<const Accumulation> accumulation() const;
  std::vector<std::shared_ptr<detail::OptimizerCore>> optimizer_cores() const;
  void add_scheduler(detail::SchedulerSlot slot, const void* scheduler);
  void register_object(RegisteredObject object, const std::string& name, bool per_rank);
  detail::TrainingState& training_state() const;
  detail::TrainingParts training_parts() const;
  SchedulerRule scheduler_rule() const;
  AccumulateScope begin_micro_batch(std::vector<std::shared_ptr<detail::ModelCore>> models);
  void join(const std::vector<std::shared_ptr<detail::ModelCore>>& models, const std::function<void()>& body,
            const JoinOptions& options);
  std::string name_of(const at::Tensor& parameter) const;
  at::Tensor gather_tensor(const at::Tensor& tensor);
  at::Tensor gather_tensor_for_metrics(const at::Tensor& tensor);
  at::Tensor reduce_tensor(const at::Tensor& tensor, ReduceOp op);
  at::Tensor broadcast_tensor(const at::Tensor& tensor, int root);
  void require_finite_gradients(const std::vector<at::Tensor>& parameters, double norm_type);
  void print_line(const std::string& text);
  std::string save_module(torch::nn::Module& module, const std::string& directory,
                          const SaveWeightsOptions& options);
  LoadWeightsReport load_module(torch::nn::Module& module, const std::string& path,
                                const LoadWeightsOptions& options);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerate
