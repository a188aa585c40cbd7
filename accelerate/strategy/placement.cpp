#include "accelerate/strategy/placement.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace accelerate {
namespace {

void move_tensor(at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return;
  const at::Tensor moved = tensor.detach().to(device);
  if (tensor.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(moved.key_set())) {
    tensor.set_data(moved);
  } else {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  }
}

}  // namespace

void move_to_device(torch::nn::Module& module, at::Device device) {
  const at::NoGradGuard no_grad;
  for (at::Tensor parameter : module.parameters()) {
    if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad().to(device);
    move_tensor(parameter, device);
  }
  for (at::Tensor buffer : module.buffers()) move_tensor(buffer, device);
}

}  // namespace accelerate
