#include "accelerate/strategy/single.h"

#include "accelerate/optim/clip.h"
#include "accelerate/strategy/state_dict.h"

namespace accelerate {
namespace {

class SingleModel final : public ModelStrategy {
 public:
  void before_forward() override {}
  void after_forward(std::span<const at::Tensor>) override {}
  void before_backward(const at::Tensor&) override {}
  void after_backward(const at::Tensor&) override {}
  void set_gradient_sync(bool) override {}
  void set_local_training(bool) override {}
};

}  // namespace

std::unique_ptr<ModelStrategy> SingleStrategy::prepare_model(torch::nn::Module&) {
  return std::make_unique<SingleModel>();
}

at::Tensor SingleStrategy::clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm,
                                          double norm_type) {
  return clip_grad_norm_(parameters, max_norm, norm_type);
}

TensorDict SingleStrategy::full_state_dict(torch::nn::Module& module) {
  return state_dict(module);
}

}  // namespace accelerate
