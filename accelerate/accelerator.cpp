#include "accelerate/accelerator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>

#include "accelerate/accelerator_impl_internal.h"
#include "accelerate/comm/device.h"
#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/environment/registry.h"
#include "accelerate/memory.h"
#include "accelerate/optim/clip.h"
#include "accelerate/optim/optimizer_state.h"
#include "accelerate/process_start.h"
#include "accelerate/strategy/placement.h"

namespace accelerate {
namespace {

std::optional<at::ScalarType> autocast_dtype(MixedPrecision precision) {
  if (precision == MixedPrecision::kBf16) return at::kBFloat16;
  if (precision == MixedPrecision::kFp16) return at::kHalf;
  return std::nullopt;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : impl_(std::make_unique<Impl>()) {
  detail::ProcessStart start = detail::start_process(options);
  impl_->config = std::move(start.config);
  impl_->context = std::move(start.context);
  impl_->options = std::move(options);
  impl_->strategy =
      make_strategy({.name = impl_->options.strategy, .ddp = impl_->options.ddp}, impl_->context);
  impl_->accumulation = std::make_shared<Accumulation>(
      AccumulationOptions{.num_steps = impl_->config.gradient_accumulation_steps,
                          .sync_with_dataloader = impl_->options.sync_with_dataloader},
      impl_->active_loaders);
  if (impl_->config.mixed_precision == MixedPrecision::kFp16) {
    impl_->scaler =
        std::make_shared<GradScaler>(impl_->options.grad_scaler, nullptr,
                                     [this](const at::Tensor& parameter) { return name_of(parameter); });
  }
  impl_->trackers = std::make_unique<TrackerSet>(TrackerSetOptions{
      .log_with = impl_->options.log_with,
      .project = impl_->options.project_config,
      .rank = process_index(),
      .world_size = num_processes(),
      .environment = impl_->options.environment ? *impl_->options.environment : EnvVars::from_process(),
      .logger = impl_->context.logger,
      .settings = explained_values(impl_->config)});
  impl_->training_state = std::make_unique<detail::TrainingState>(
      context(), impl_->options.project_config,
      impl_->options.files != nullptr ? *impl_->options.files : system_files());
  impl_->active_loaders->lookahead = std::max<int64_t>(1, impl_->config.gradient_accumulation_steps);
}

Accelerator::~Accelerator() = default;

const ProcessContext& Accelerator::context() const {
  return impl_->context;
}
const Config& Accelerator::config() const {
  return impl_->config;
}
TrackerSet& Accelerator::trackers() const {
  return *impl_->trackers;
}
const Strategy& Accelerator::strategy() const {
  return *impl_->strategy;
}
bool Accelerator::sync_gradients() const {
  return impl_->accumulation->sync_gradients();
}
bool Accelerator::end_of_dataloader() const {
  const LoaderProgress* loader = impl_->active_loaders->current();
  return loader != nullptr && loader->end_of_dataloader();
}
int64_t Accelerator::remainder() const {
  const LoaderProgress* loader = impl_->active_loaders->current();
  return loader == nullptr ? -1 : loader->remainder;
}
int64_t Accelerator::gradient_accumulation_steps() const {
  return impl_->accumulation->options().num_steps;
}
std::shared_ptr<const Accumulation> Accelerator::accumulation() const {
  return impl_->accumulation;
}
std::vector<std::shared_ptr<detail::OptimizerCore>> Accelerator::optimizer_cores() const {
  return impl_->optimizers;
}

SchedulerRule Accelerator::scheduler_rule() const {
  const bool per_process =
      impl_->config.scheduler_rule == "per_process" && !impl_->options.dataloader.split_batches;
  return {.with_optimizer = impl_->config.step_scheduler_with_optimizer,
          .steps = per_process ? num_processes() : 1};
}

std::shared_ptr<detail::LoaderCore> Accelerator::make_loader_core(std::optional<int64_t> dataset_size,
                                                                  const DataLoaderOptions& options) {
  DataLoaderConfiguration configuration = impl_->options.dataloader;
  configuration.device_placement = configuration.device_placement && impl_->options.device_placement;
  auto core = std::make_shared<detail::LoaderCore>(context(), dataset_size, options, configuration,
                                                   impl_->active_loaders);
  impl_->loaders.push_back(core);
  // The first loader is the one that trains; others (evaluation) are not told about.
  const bool first = !std::exchange(impl_->batch_said, true);
  if (first && core->batch_size_per_rank() > 0 && is_main_process()) {
    const int64_t steps = gradient_accumulation_steps();
    logger().info(concat("batch size: ", core->batch_size_per_rank(), " per rank x ", num_processes(),
                         num_processes() == 1 ? " rank x " : " ranks x ", steps,
                         steps == 1 ? " accumulation step = " : " accumulation steps = ",
                         core->batch_size_per_rank() * num_processes() * steps,
                         " samples per optimizer step"));
  }
  return core;
}

std::shared_ptr<detail::ModelCore> Accelerator::make_model_core(std::shared_ptr<torch::nn::Module> module) {
  if (module == nullptr) {
    throw ConfigError({.what = "prepare() was given an empty module holder", .rank = process_index()});
  }
  for (const auto& core : impl_->models) {
    if (core->module == module) return core;
  }
  if (impl_->options.device_placement) move_to_device(*module, device());
  auto core = std::make_shared<detail::ModelCore>();
  core->strategy = impl_->strategy->prepare_model(*module);
  core->precision = {.device_type = device().type(),
                     .autocast_dtype = autocast_dtype(impl_->config.mixed_precision),
                     .convert_outputs_to_fp32 = impl_->options.convert_outputs_to_fp32};
  core->module = std::move(module);
  impl_->models.push_back(core);
  return core;
}

std::shared_ptr<detail::OptimizerCore> Accelerator::make_optimizer_core(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  for (const auto& core : impl_->optimizers) {
    if (&core->optimizer() == optimizer.get()) return core;
  }
  std::vector<at::Tensor> known;
  for (const auto& core : impl_->models) {
    const auto parameters = core->module->parameters();
    known.insert(known.end(), parameters.begin(), parameters.end());
  }
  size_t strangers = 0;
  size_t total = 0;
  for (const auto& group : optimizer->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      ++total;
      strangers += std::none_of(known.begin(), known.end(),
                                [&](const auto& other) { return other.is_same(parameter); });
    }
  }
  if (strangers > 0 || total == 0) {
    throw ConfigError(
        {.what = total == 0 ? "the optimizer has no parameters"
                            : concat(strangers, " of the optimizer's ", total,
                                     " parameters belong to no prepared model"),
         .hint = "Give the model to prepare() too (in the same call or before), and build the optimizer "
                 "from that model's parameters().",
         .rank = process_index()});
  }
  if (impl_->options.device_placement && !device().is_cpu()) move_optimizer_state(*optimizer, device());
  auto core = std::make_shared<detail::OptimizerCore>(
      std::move(optimizer), impl_->accumulation,
      detail::OptimizerRules{.fused = impl_->options.fused_optimizer, .scaler = impl_->scaler});
  impl_->optimizers.push_back(core);
  return core;
}

AccumulateScope::AccumulateScope(std::vector<std::shared_ptr<detail::ModelCore>> local_models,
                                 std::shared_ptr<Accumulation> accumulation)
    : local_models_(std::move(local_models)), accumulation_(std::move(accumulation)) {
  for (const auto& model : local_models_) model->strategy->set_gradient_sync(false);
}

AccumulateScope::~AccumulateScope() {
  if (accumulation_) accumulation_->end_micro_batch();
  for (const auto& model : local_models_) model->strategy->set_gradient_sync(true);
}

AccumulateScope Accelerator::begin_micro_batch(std::vector<std::shared_ptr<detail::ModelCore>> models) {
  impl_->accumulation->begin_micro_batch();
  if (impl_->accumulation->sync_gradients() || impl_->options.sync_each_batch) models.clear();
  return AccumulateScope(std::move(models), impl_->accumulation);
}

namespace {

// Sets a value for as long as it lives.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& target, T value) : target_(target), before_(std::exchange(target, std::move(value))) {}
  ~ScopedValue() { target_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& target_;
  T before_;
};

}  // namespace

void Accelerator::join(const std::vector<std::shared_ptr<detail::ModelCore>>& models,
                       const std::function<void()>& body, const JoinOptions& options) {
  for (const auto& model : models) model->strategy->begin_uneven();
  {
    const ScopedValue<std::optional<bool>> even(impl_->active_loaders->even_batches, options.even_batches);
    body();
  }
  bool training = true;
  while (training) {
    training = false;
    for (const auto& model : models) training |= model->strategy->shadow_step();
  }
  int source = -1;
  for (const auto& model : models) source = std::max(source, model->strategy->end_uneven());
  if (source < 0) return;
  // Ranks that ended early have taken fewer steps; their moments would make the weights drift apart.
  for (const auto& optimizer : impl_->optimizers) {
    broadcast_optimizer_state(communicator(), optimizer->optimizer(), source);
  }
}

void Accelerator::backward(const at::Tensor& loss, bool retain_graph, bool create_graph) {
  const int64_t window = impl_->accumulation->divisor();
  if (!impl_->scaler) impl_->loss_watch.look(loss, *impl_->context.logger);
  at::Tensor root = window > 1 ? loss / static_cast<double>(window) : loss;
  if (impl_->scaler) root = impl_->scaler->scale(root);
  for (const auto& model : impl_->models) model->strategy->before_backward(root);
  try {
    root.backward({}, retain_graph, create_graph);
  } catch (const std::exception&) {
    communicator().rethrow("backward (all_reduce of gradients)");
  }
  for (const auto& model : impl_->models) model->strategy->after_backward(root);
  for (const auto& optimizer : impl_->optimizers) {
    // One model's backward must not be taken for another's. A single optimizer needs no look at the graph.
    if (impl_->optimizers.size() == 1 || optimizer->reached_by(root)) optimizer->note_backward();
  }
}

std::unique_ptr<AutocastGuard> Accelerator::autocast() const {
  const auto dtype = autocast_dtype(impl_->config.mixed_precision);
  return dtype ? std::make_unique<AutocastGuard>(device().type(), *dtype) : nullptr;
}

GradScaler* Accelerator::scaler() const {
  return impl_->scaler.get();
}

void Accelerator::free_memory() {
  impl_->models.clear();
  impl_->optimizers.clear();
  impl_->loaders.clear();
  impl_->schedulers.clear();
  impl_->training_state->free_memory();
  impl_->batch_said = false;
  empty_device_cache();
}

void Accelerator::synchronize_rng_states(int root) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  at::Tensor state = at::Tensor::wrap_tensor_impl(generator.unsafeGetGeneratorImpl()->get_state()).clone();
  communicator().broadcast(state, root);
  generator.set_state(state);
}

void Accelerator::set_trigger() {
  impl_->triggered = true;
}

bool Accelerator::check_trigger() {
  at::Tensor raised =
      at::full({1}, std::exchange(impl_->triggered, false) ? 1 : 0, at::TensorOptions(at::kLong));
  communicator().all_reduce(raised);
  return raised.item<int64_t>() > 0;
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : impl_->optimizers) optimizer->unscale();
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(impl_->optimizers.begin(), impl_->optimizers.end(),
                     [](const auto& optimizer) { return optimizer->step_was_skipped(); });
}

std::string Accelerator::name_of(const at::Tensor& parameter) const {
  for (const auto& model : impl_->models) {
    for (const auto& entry : model->module->named_parameters()) {
      if (entry.value().is_same(parameter)) return entry.key();
    }
  }
  return "";
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type, bool error_if_nonfinite) {
  if (!sync_gradients()) return at::zeros({});
  unscale_gradients();
  if (error_if_nonfinite) require_finite_gradients(parameters, norm_type);
  return impl_->strategy->clip_grad_norm(parameters, max_norm, norm_type);
}

void Accelerator::require_finite_gradients(const std::vector<at::Tensor>& parameters, double norm_type) {
  const auto count = static_cast<int64_t>(parameters.size());
  int64_t bad = first_nonfinite_gradient(parameters, norm_type).value_or(count);
  if (impl_->strategy->capabilities().shards_parameters) {  // the fault may be in another rank's part
    at::Tensor first = at::full({1}, bad, at::TensorOptions(at::kLong).device(device()));
    communicator().all_reduce(first, ReduceOp::kMin);
    bad = first.item<int64_t>();
  }
  if (bad == count) return;
  const std::string known = name_of(parameters[static_cast<size_t>(bad)]);
  const std::string name = known.empty() ? concat("number ", bad) : concat("'", known, "'");
  throw Error(
      {.what = concat("the norm of the gradients is not finite; the first parameter at fault is ", name),
       .hint = "Look at this step's loss and inputs; a smaller learning rate or a warm-up often helps.",
       .rank = process_index()});
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!sync_gradients()) return;
  unscale_gradients();
  accelerate::clip_grad_value_(parameters, clip_value);
}

at::Tensor Accelerator::gather_tensor(const at::Tensor& tensor) {
  return communicator().all_gather(tensor.detach());
}

at::Tensor Accelerator::gather_tensor_for_metrics(const at::Tensor& tensor) {
  const LoaderProgress* loader = impl_->active_loaders->current();
  if (tensor.dim() == 0) {
    // One number a rank says nothing about which samples are in it, so repeats can't be taken out.
    if (num_processes() > 1) {
      logger().warning_once(
          "gather_for_metrics was given a 0-d tensor: repeated samples can't be left out of it. Gather "
          "per-sample values, or a sum and a count.");
    }
    return gather_tensor(tensor);
  }
  at::Tensor all = loader != nullptr && loader->sizes_vary && num_processes() > 1
                       ? gather_rows(communicator(), tensor.detach())
                       : gather_tensor(tensor);
  const bool repeats = loader != nullptr && loader->remainder > 0 && num_processes() > 1;
  return repeats ? all.narrow(0, 0, std::min(loader->remainder, all.size(0))) : all;
}

at::Tensor Accelerator::reduce_tensor(const at::Tensor& tensor, ReduceOp op) {
  at::Tensor out = tensor.detach().clone();
  communicator().all_reduce(out, op);
  return out;
}

at::Tensor Accelerator::broadcast_tensor(const at::Tensor& tensor, int root) {
  at::Tensor out = tensor.detach().clone();
  communicator().broadcast(out, root);
  return out;
}

void Accelerator::print_line(const std::string& text) {
  const std::string line = text + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(STDOUT_FILENO, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed standard output must not end the training
    done += static_cast<size_t>(written);
  }
}

}  // namespace accelerate
