#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "accelerate/accelerator.h"
#include "accelerate/precision/loss_watch.h"

namespace accelerate {

struct Accelerator::Impl {
  Config config;
  ProcessContext context;
  AcceleratorOptions options;
  std::unique_ptr<Strategy> strategy;
  std::shared_ptr<ActiveLoaders> active_loaders = std::make_shared<ActiveLoaders>();
  std::shared_ptr<Accumulation> accumulation;
  std::vector<std::shared_ptr<detail::ModelCore>> models;
  std::vector<std::shared_ptr<detail::OptimizerCore>> optimizers;
  std::vector<std::weak_ptr<detail::LoaderCore>> loaders;
  std::vector<std::pair<const void*, detail::SchedulerSlot>> schedulers;  // by object, each once
  std::vector<RegisteredObject> registered;
  std::shared_ptr<GradScaler> scaler;  // null but for fp16
  LossWatch loss_watch;
  std::unique_ptr<TrackerSet> trackers;
  std::unique_ptr<detail::TrainingState> training_state;
  bool triggered = false;   // set_trigger() since the last check
  bool batch_said = false;  // the total batch size has been printed
};

}  // namespace accelerate
