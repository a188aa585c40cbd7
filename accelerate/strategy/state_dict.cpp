#include "accelerate/strategy/state_dict.h"

namespace accelerate {

TensorDict state_dict(const torch::nn::Module& module) {
  TensorDict out;
  for (const auto& entry : module.named_parameters()) out[entry.key()] = entry.value().detach();
  for (const auto& entry : module.named_buffers()) {
    // Modules keep optional buffers (running statistics that are switched off) as undefined tensors.
    if (entry.value().defined()) out[entry.key()] = entry.value().detach();
  }
  return out;
}

}  // namespace accelerate
