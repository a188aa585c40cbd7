#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "accelerate/comm/communicator.h"
#include "accelerate/core/log.h"
#include "accelerate/environment/topology.h"

namespace accelerate {

/// What this process is within its job: its place, its device, its connection to the others. Made once by the
/// Accelerator and shared by all parts that need it. An Accelerator converts to it.
struct ProcessContext {
  Topology topology;
  std::shared_ptr<Logger> logger;  // outlives the communicator, which prints to it
  std::shared_ptr<Communicator> communicator;
  at::Device device = at::kCPU;
  /// Numbers the shared data sets of this process. All ranks create theirs in the same order.
  std::shared_ptr<int64_t> next_dataset = std::make_shared<int64_t>(0);
  /// Numbers its calls of first_then_others(), likewise.
  std::shared_ptr<int64_t> next_turn = std::make_shared<int64_t>(0);
};

}  // namespace accelerate
