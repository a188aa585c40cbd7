#include "accelerate/optim/local_sgd.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <map>

#include "accelerate/accelerator.h"
#include "accelerate/core/error.h"

namespace accelerate {

LocalSgd::LocalSgd(Accelerator& accelerator, std::shared_ptr<detail::ModelCore> model, int64_t interval)
    : accelerator_(accelerator), model_(std::move(model)), interval_(interval) {
  if (interval < 1) {
    throw ConfigError(
        {.what = "interval of LocalSgd", .expected = "1 or more steps", .got = std::to_string(interval)});
  }
  model_->strategy->set_local_training(true);
}

LocalSgd::~LocalSgd() {
  if (model_ != nullptr) model_->strategy->set_local_training(false);
}

void LocalSgd::step() {
  if (model_ == nullptr || !accelerator_.sync_gradients()) return;
  if (++steps_ % interval_ == 0) average();
}

void LocalSgd::finish() {
  if (model_ == nullptr) return;
  average();
  model_->strategy->set_local_training(false);
  model_.reset();
}

// One exchange for each dtype, not one for each weight.
void LocalSgd::average() {
  if (accelerator_.num_processes() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& parameter : model_->module->parameters()) {
    by_dtype[parameter.scalar_type()].push_back(parameter.detach());
  }
  for (const auto& [dtype, parameters] : by_dtype) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& parameter : parameters) flat.push_back(parameter.reshape({-1}));
    at::Tensor joined = at::cat(flat);
    accelerator_.communicator().all_reduce(joined, ReduceOp::kMean);
    int64_t begin = 0;
    for (const at::Tensor& parameter : parameters) {
      parameter.copy_(joined.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
}

}  // namespace accelerate
