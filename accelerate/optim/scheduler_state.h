#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include <string>

namespace accelerate {

/// Local. Where a learning-rate schedule stands, as JSON text:
///   {"format_version": 1, "type": "StepLR", "step_count": 7}
/// The optimizer's rates are part of the optimizer's state, which is to be restored too: StepLR multiplies
/// the rates that it finds there. accelerate::LambdaLR (all of get_scheduler()) keeps the rates that it
/// started from as well. Of a user's own LRScheduler this holds the step count, which is all that LibTorch's
/// base class has; members of its own are its own affair.
std::string scheduler_state(const torch::optim::LRScheduler& scheduler);

/// The same for ReduceLROnPlateau: best metric, epochs without improvement, cooldown, number of epochs. Its
/// options (patience, factor, ...) are not part of it, as with all schedules: they come from the program.
std::string scheduler_state(const torch::optim::ReduceLROnPlateauScheduler& scheduler);

/// Local. Makes a schedule go on from a state of scheduler_state(). accelerate::LambdaLR sets the optimizer's
/// rates, the others leave them. After an error the schedule is what it was.
/// @throws CheckpointError when the state is damaged, of a newer format, of another type of schedule, or was
/// written for another number of parameter groups.
void load_scheduler_state(torch::optim::LRScheduler& scheduler, const std::string& json);
void load_scheduler_state(torch::optim::ReduceLROnPlateauScheduler& scheduler, const std::string& json);

}  // namespace accelerate
