#pragma once

#include "accelerate/strategy/single.h"

namespace accelerate {

// Note [Data parallel training]
// The engine is c10d::Reducer, the one under Python's DistributedDataParallel: gradients are sent in buckets
// while the backward pass still computes others. What Python's wrapper adds around it is here:
//   - at the start all ranks check that they have the same model and take rank 0's weights and buffers;
//   - before a forward that will be reduced, buckets are rebuilt in the order in which gradients arrived;
//   - after it, the reducer is told that a backward comes. A forward that went past the handle is told by
//     Accelerator::backward().
//   - after a backward that was reduced, rank 0's buffers go to all, so that they are equal whenever the user
//   looks
//     (Python sends them before the next forward; the values that a forward sees are the same);
//   - after it as well, parameters that got no gradient are an error that names them.

/// Every rank holds the model and works on its own part of the data; gradients are averaged. See
/// Note [Data parallel training].
class DdpStrategy final : public SingleStrategy {
 public:
  DdpStrategy(const ProcessContext& context, const DdpOptions& options);
  std::string_view name() const override { return "ddp"; }
  StrategyCapabilities capabilities() const override {
    return {.distributed = true, .reduces_gradients = true};
  }
  std::unique_ptr<ModelStrategy> prepare_model(torch::nn::Module& module) override;

 private:
  std::shared_ptr<Communicator> communicator_;
  DdpOptions options_;
};

}  // namespace accelerate
