#include "accelerate/precision/grad_scaler.h"

#include <ATen/Functions.h>

#include <map>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void check(bool ok, const std::string& what, const std::string& expected, double got) {
  if (!ok) throw ConfigError({.what = what, .expected = expected, .got = std::to_string(got)});
}

// Gradients of an optimizer's parameters by device and dtype.
std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> gradients_of(
    torch::optim::Optimizer& optimizer) {
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> out;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf) {
        throw ConfigError({.what = "gradients in float16 can't be unscaled without loss",
                           .hint =
                               "Keep the model's weights in float32; mixed_precision fp16 computes in half "
                               "precision where that is safe."});
      }
      // Only what is there can overflow.
      at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
      out[{values.device().str(), values.scalar_type()}].push_back(values);
    }
  }
  return out;
}

at::Device device_of(torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) return parameter.device();
  }
  return at::kCPU;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, std::shared_ptr<Communicator> communicator,
                       NameOf name_of)
    : options_(options),
      communicator_(std::move(communicator)),
      name_of_(std::move(name_of)),
      initial_{.scale = options.init_scale, .growth_tracker = 0} {
  check(options.init_scale > 0, "init_scale of the gradient scaler", "a number above 0", options.init_scale);
  check(options.growth_factor > 1, "growth_factor of the gradient scaler", "a number above 1",
        options.growth_factor);
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor of the gradient scaler",
        "a number between 0 and 1", options.backoff_factor);
  check(options.growth_interval > 0, "growth_interval of the gradient scaler", "1 or more",
        static_cast<double>(options.growth_interval));
  check(options.min_scale > 0 && options.min_scale <= options.init_scale, "min_scale of the gradient scaler",
        "a number above 0 and up to init_scale", options.min_scale);
}

void GradScaler::prepare(at::Device device) {
  if (scale_.defined()) return;
  scale_ = at::full({1}, initial_.scale, at::TensorOptions(at::kFloat).device(device));
  growth_tracker_ = at::full({1}, initial_.growth_tracker, at::TensorOptions(at::kInt).device(device));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  prepare(loss.device());
  update();
  return loss * scale_.to(loss.device()).squeeze();
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (is_unscaled(optimizer)) return;
  prepare(device_of(optimizer));
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros_like(scale_);
  for (auto& [place, gradients] : gradients_of(optimizer)) {
    const at::Device device = gradients.front().device();
    at::Tensor here = at::zeros({1}, found.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, here, inverse.to(device));
    found = at::maximum(found, here.to(found.device()));
  }
  if (communicator_ != nullptr) communicator_->all_reduce(found, ReduceOp::kMax);
  found_inf_[&optimizer] = found;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, const std::function<void()>& step) {
  unscale_(optimizer);
  const at::Tensor found = found_inf_.at(&optimizer);
  found_inf_.erase(&optimizer);
  found_since_update_ = found_since_update_.defined() ? at::maximum(found_since_update_, found) : found;
  ++steps_;
  if (found.item<float>() == 0) {
    skipped_in_a_row_ = 0;
    step();
    return true;
  }
  count_skipped(optimizer);
  return false;
}

void GradScaler::count_skipped(torch::optim::Optimizer& optimizer) {
  ++skipped_in_a_row_;
  if (options_.max_skipped_steps == 0 || skipped_in_a_row_ < options_.max_skipped_steps) return;
  std::string first_bad = "one on another rank";
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const bool bad = parameter.grad().defined() && !parameter.grad().isfinite().all().item<bool>();
      if (!bad || first_bad != "one on another rank") continue;
      const std::string name = name_of_ ? name_of_(parameter) : "";
      first_bad = name.empty() ? "one without a name" : concat("'", name, "'");
    }
  }
  throw Error(
      {.what =
           concat("the loss or its gradients have not been finite since optimizer step ",
                  steps_ - skipped_in_a_row_ + 1, ": ", skipped_in_a_row_,
                  " steps in a row were left out; the first parameter with such a gradient is ", first_bad),
       .hint = "Lower the learning rate, look for a division by zero or the logarithm of one, or train in "
               "bf16, which has float32's range."});
}

void GradScaler::reset(torch::optim::Optimizer& optimizer) {
  found_inf_.erase(&optimizer);
}

bool GradScaler::is_unscaled(const torch::optim::Optimizer& optimizer) const {
  return found_inf_.count(&optimizer) > 0;
}

void GradScaler::update() {
  if (!found_since_update_.defined()) return;
  at::_amp_update_scale_(scale_, growth_tracker_, found_since_update_, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  scale_.clamp_min_(options_.min_scale);
  found_since_update_.reset();
}

double GradScaler::get_scale() {
  if (!scale_.defined()) return initial_.scale;
  update();
  return scale_.item<float>();
}

GradScalerState GradScaler::state() {
  if (!scale_.defined()) return initial_;
  update();
  return {.scale = scale_.item<float>(), .growth_tracker = growth_tracker_.item<int>()};
}

void GradScaler::load_state(const GradScalerState& state) {
  initial_ = state;
  found_since_update_.reset();
  found_inf_.clear();
  if (!scale_.defined()) return;
  scale_.fill_(state.scale);
  growth_tracker_.fill_(state.growth_tracker);
}

}  // namespace accelerate
