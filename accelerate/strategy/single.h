#pragma once

#include "accelerate/strategy/strategy.h"

namespace accelerate {

/// One rank on one device: the user's module as it is.
class SingleStrategy : public Strategy {
 public:
  std::string_view name() const override { return "single"; }
  StrategyCapabilities capabilities() const override { return {}; }
  std::unique_ptr<ModelStrategy> prepare_model(torch::nn::Module& module) override;
  at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm,
                            double norm_type) override;
  TensorDict full_state_dict(torch::nn::Module& module) override;
};

}  // namespace accelerate
