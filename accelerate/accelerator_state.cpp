// Checkpoints of an Accelerator.
#include <algorithm>

#include "accelerate/accelerator_impl_internal.h"
#include "accelerate/comm/object_collectives.h"
#include "accelerate/core/error.h"
#include "accelerate/core/preemption.h"
#include "accelerate/strategy/state_dict.h"

namespace accelerate {

detail::TrainingState& Accelerator::training_state() const {
  return *impl_->training_state;
}

detail::TrainingParts Accelerator::training_parts() const {
  const DdpOptions& ddp = impl_->options.ddp;
  if (num_processes() > 1 && (ddp.comm_hook.ends_with("power_sgd") || ddp.custom_comm_hook)) {
    logger().warning_once(
        "checkpoints hold nothing of communication hooks: PowerSGD's memory of errors and its warm-up begin "
        "anew, so "
        "a resumed run is close to, but not bit for bit, the one that was never left");
  }
  if (num_processes() > 1 && !ddp.broadcast_buffers && !ddp.sync_batchnorm) {
    logger().warning_once(
        "broadcast_buffers is off: a checkpoint holds the buffers of the main process, and all ranks go on "
        "with "
        "those");
  }
  detail::TrainingParts parts{.strategy = impl_->strategy.get(),
                              .models = impl_->models,
                              .optimizers = impl_->optimizers,
                              .schedulers = {},
                              .loaders = {},
                              .objects = impl_->registered,
                              .scaler = impl_->scaler,
                              .accumulation = impl_->accumulation};
  for (const auto& [object, slot] : impl_->schedulers) parts.schedulers.push_back(slot);
  std::erase_if(impl_->loaders, [](const auto& loader) { return loader.expired(); });
  for (const auto& loader : impl_->loaders) parts.loaders.push_back(loader.lock());
  return parts;
}

void Accelerator::add_scheduler(detail::SchedulerSlot slot, const void* scheduler) {
  for (const auto& [object, known] : impl_->schedulers) {
    if (object == scheduler) return;
  }
  impl_->schedulers.emplace_back(scheduler, std::move(slot));
}

void Accelerator::register_object(RegisteredObject object, const std::string& name, bool per_rank) {
  object.name = name.empty() ? concat("custom_checkpoint_", impl_->registered.size()) : name;
  object.per_rank = per_rank;
  const bool is_taken = std::any_of(impl_->registered.begin(), impl_->registered.end(),
                                    [&](const auto& other) { return other.name == object.name; });
  if (is_taken || object.name.find('/') != std::string::npos) {
    throw ConfigError({.what = "register_for_checkpointing()",
                       .expected = "a file name of its own for each object",
                       .got = concat("'", object.name, "'"),
                       .rank = process_index()});
  }
  impl_->registered.push_back(std::move(object));
}

bool Accelerator::preemption_requested() {
  PreemptionSignal::watch();
  at::Tensor raised = at::full({1}, PreemptionSignal::raised() ? 1 : 0, at::TensorOptions(at::kLong));
  communicator().all_reduce(raised, ReduceOp::kMax);
  return raised.item<int64_t>() > 0;
}

void Accelerator::save_if_preempted(const std::string& path) {
  training_state().check_destination(path);
  if (!preemption_requested()) return;
  // Gradients are in no checkpoint, so a window of micro-batches is finished first; and after an epoch's last
  // batch the program's own work at its end, which a resumed run would not do again.
  if (impl_->accumulation->pending() > 0 || end_of_dataloader()) return;
  logger().info("asked to end (SIGTERM): saving the state first");
  try {
    wait_for_save();
  } catch (const std::exception& error) {  // what matters now is this one
    logger().error(concat("an earlier save in the background failed: ", error_message(error)),
                   LogRanks::kAll);
  }
  const std::string saved = save_state(path);
  throw Preempted({.what = concat("ended on request (SIGTERM); the state is in ", saved),
                   .hint = "Start the program again to go on from it."});
}

void Accelerator::end_training() {
  std::exception_ptr problem;
  try {
    wait_for_save();
  } catch (const std::exception&) {
    problem = std::current_exception();
  }
  try {
    trackers().finish();
  } catch (const std::exception& error) {
    if (!problem) throw;
    logger().error(error_message(error), LogRanks::kAll);
  }
  if (problem) std::rethrow_exception(problem);
}

std::string Accelerator::save_module(torch::nn::Module& module, const std::string& directory,
                                     const SaveWeightsOptions& options) {
  const TensorDict tensors = impl_->strategy->full_state_dict(module);
  std::string said;
  std::exception_ptr problem;
  if (is_main_process()) {
    try {
      const SavedWeights saved = save_weights(training_state().files(), tensors, directory, options);
      for (const auto& [left_out, kept] : saved.shared) {
        logger().info(
            concat("'", left_out, "' shares its memory with '", kept, "' and is saved under that name"));
      }
      said = saved.path;
    } catch (const std::exception&) {
      problem = std::current_exception();
    }
  }
  said = broadcast_bytes(communicator(), said, 0);
  if (problem) std::rethrow_exception(problem);
  if (said.empty()) {
    throw CheckpointError({.what = concat("the main process could not save the model to ", directory),
                           .rank = process_index(),
                           .echo = true});
  }
  return said;
}

LoadWeightsReport Accelerator::load_module(torch::nn::Module& module, const std::string& path,
                                           const LoadWeightsOptions& options) {
  LoadWeightsReport report;
  std::string text;
  std::exception_ptr problem;
  try {
    report = load_checkpoint_in_model(module, path, options);
  } catch (const std::exception& error) {
    problem = std::current_exception();
    text = error_message(error);
  }
  const std::vector<std::string> all = all_gather_bytes(communicator(), text);
  if (problem) std::rethrow_exception(problem);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    throw CheckpointError({.what = concat("loading ", path, " failed on rank ", rank, ": ", all[rank]),
                           .rank = process_index(),
                           .echo = true});
  }
  const auto warn = [this](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) logger().warning(concat(what, accelerate::join(names, ", ")));
  };
  warn("not in the file, so left as they are: ", report.missing);
  warn("in the file but not in the model, so left out: ", report.unexpected);
  warn("of another shape or kind, so left as they are: ", report.mismatched);
  return report;
}

}  // namespace accelerate
