#pragma once

#include <torch/optim/optimizer.h>

#include "accelerate/comm/communicator.h"

namespace accelerate {

/// Collective. The optimizer's state (moments, step counts, options of its parameter groups) becomes that of
/// rank `root`. Parameters are left alone.
/// @throws CommError when a rank is gone.
void broadcast_optimizer_state(Communicator& communicator, torch::optim::Optimizer& optimizer, int root);

/// Local. Moves the state that an optimizer has before its first prepared step (Adagrad's sums, moments that
/// were loaded) to `device`, where its parameters are.
void move_optimizer_state(torch::optim::Optimizer& optimizer, at::Device device);

}  // namespace accelerate
