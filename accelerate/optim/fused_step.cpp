#include "accelerate/optim/fused_step.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <typeinfo>
#include <vector>

namespace accelerate::detail {
namespace {

using torch::optim::Optimizer;
using Tensors = std::vector<at::Tensor>;

// What a kernel needs of one parameter's state.
struct Slot {
  std::array<at::Tensor, 3> state;  // undefined: not used
  int64_t step = 0;                 // counted from 1; 0: not used
  bool is_first = false;            // SGD's kernel does the first step in a call of its own
};

// The parameters of one group that one kernel call steps together.
struct Batch {
  at::Device device;
  at::ScalarType dtype;
  bool is_first;
  Tensors parameters;
  Tensors gradients;
  std::array<Tensors, 3> state;
  Tensors steps;  // one float a parameter
  int64_t last_step = 0;

  void add(const at::Tensor& parameter, Slot slot) {
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    for (size_t i = 0; i < state.size(); ++i) {
      if (slot.state[i].defined()) state[i].push_back(std::move(slot.state[i]));
    }
    if (slot.step == 0) return;
    // Parameters mostly have the same count, and kernels only read it: they share one tensor.
    const auto options = at::TensorOptions(at::kFloat).device(device);
    steps.push_back(slot.step == last_step ? steps.back()
                                           : at::full({}, static_cast<double>(slot.step), options));
    last_step = slot.step;
  }
};

class Batches {
 public:
  void add(const at::Tensor& parameter, Slot slot) {
    const auto fits = [&](const Batch& batch) {
      return batch.device == parameter.device() && batch.dtype == parameter.scalar_type() &&
             batch.is_first == slot.is_first;
    };
    auto found = std::find_if(batches_.begin(), batches_.end(), fits);
    if (found == batches_.end()) {
      batches_.push_back({.device = parameter.device(),
                          .dtype = parameter.scalar_type(),
                          .is_first = slot.is_first,
                          .parameters = {},
                          .gradients = {},
                          .state = {},
                          .steps = {}});
      found = batches_.end() - 1;
    }
    found->add(parameter, std::move(slot));
  }
  const std::vector<Batch>& all() const { return batches_; }

 private:
  std::vector<Batch> batches_;
};

// Asks the dispatcher whether an operator has a kernel; remembers the last answer.
class KernelLookup {
 public:
  explicit KernelLookup(const char* op) : op_(c10::Dispatcher::singleton().findSchema({op, ""})) {}

  bool has(const at::Tensor& parameter) {
    if (parameter.device() != device_ || parameter.scalar_type() != dtype_) {
      device_ = parameter.device();
      dtype_ = parameter.scalar_type();
      const bool known_type =
          dtype_ == at::kFloat || dtype_ == at::kDouble || dtype_ == at::kHalf || dtype_ == at::kBFloat16;
      const auto key = c10::computeDispatchKey(dtype_, at::kStrided, device_);
      has_ = known_type && op_.has_value() && op_->hasKernelForDispatchKey(key);
    }
    return has_;
  }

 private:
  std::optional<c10::OperatorHandle> op_;
  at::Device device_ = at::kMeta;
  at::ScalarType dtype_ = at::ScalarType::Undefined;
  bool has_ = false;
};

// `other` (a gradient or a part of the state) can be walked along with `parameter`, element by element.
bool alike(const at::Tensor& parameter, const at::Tensor& other) {
  return other.defined() && other.layout() == at::kStrided &&
         other.scalar_type() == parameter.scalar_type() && other.device() == parameter.device() &&
         other.sizes() == parameter.sizes() && other.strides() == parameter.strides();
}

template <class State>
State* find_state(Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

template <class State>
State* add_state(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& place = optimizer.state()[parameter.unsafeGetTensorImpl()];
  place = std::make_unique<State>();
  return static_cast<State*>(place.get());
}

// The rules of the four optimizers: slot() makes the state of a parameter that has none yet, as LibTorch's
// step() does, and counts the step; nullopt if the kernel can't work on the state that is there. step() is
// the kernel.

template <class OptionsType, class State>
struct AdamRule {
  using Options = OptionsType;

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& parameter, const Options& options) {
    State* state = find_state<State>(optimizer, parameter);
    if (state == nullptr) {
      state = add_state<State>(optimizer, parameter);
      state->exp_avg(at::zeros_like(parameter));
      state->exp_avg_sq(at::zeros_like(parameter));
      if (options.amsgrad()) state->max_exp_avg_sq(at::zeros_like(parameter));
    }
    if (!alike(parameter, state->exp_avg()) || !alike(parameter, state->exp_avg_sq())) return std::nullopt;
    Slot slot{.state = {state->exp_avg(), state->exp_avg_sq(), at::Tensor()}};
    if (options.amsgrad()) {
      if (!alike(parameter, state->max_exp_avg_sq())) return std::nullopt;
      slot.state[2] = state->max_exp_avg_sq();
    }
    state->step(state->step() + 1);
    slot.step = state->step();
    return slot;
  }
};

struct AdamStep : AdamRule<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kKernel = "aten::_fused_adam_";
  static void step(const Batch& batch, const Options& options) {
    const auto [beta1, beta2] = options.betas();
    at::_fused_adam_(batch.parameters, batch.gradients, batch.state[0], batch.state[1], batch.state[2],
                     batch.steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                     options.amsgrad(), /*maximize=*/false);
  }
};

struct AdamWStep : AdamRule<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kKernel = "aten::_fused_adamw_";
  static void step(const Batch& batch, const Options& options) {
    const auto [beta1, beta2] = options.betas();
    at::_fused_adamw_(batch.parameters, batch.gradients, batch.state[0], batch.state[1], batch.state[2],
                      batch.steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                      options.amsgrad(), /*maximize=*/false);
  }
};

struct SgdStep {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kKernel = "aten::_fused_sgd_";

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& parameter, const Options& options) {
    Slot slot;
    if (options.momentum() == 0) return slot;
    State* state = find_state<State>(optimizer, parameter);
    slot.is_first = state == nullptr;
    if (slot.is_first) {
      state = add_state<State>(optimizer, parameter);
      state->momentum_buffer(at::empty_like(parameter));  // the first step writes it
    }
    if (!alike(parameter, state->momentum_buffer())) return std::nullopt;
    slot.state[0] = state->momentum_buffer();
    return slot;
  }
  static void step(const Batch& batch, const Options& options) {
    at::_fused_sgd_(batch.parameters, batch.gradients, batch.state[0], options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, batch.is_first);
  }
};

struct AdagradStep {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kKernel = "aten::_fused_adagrad_";

  static std::optional<Slot> slot(Optimizer& optimizer, const at::Tensor& parameter, const Options&) {
    State* state = find_state<State>(optimizer, parameter);
    if (state == nullptr || !alike(parameter, state->sum())) return std::nullopt;
    state->step(state->step() + 1);
    return Slot{.state = {state->sum(), at::Tensor(), at::Tensor()}, .step = state->step()};
  }
  static void step(const Batch& batch, const Options& options) {
    at::_fused_adagrad_(batch.parameters, batch.gradients, batch.state[0], batch.steps, options.lr(),
                        options.lr_decay(), options.weight_decay(), options.eps(), /*maximize=*/false);
  }
};

// Takes the gradients of parameters away for as long as it lives.
class HiddenGradients {
 public:
  explicit HiddenGradients(Tensors parameters) : parameters_(std::move(parameters)) {
    for (const at::Tensor& parameter : parameters_) {
      gradients_.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
    }
  }
  ~HiddenGradients() {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = std::move(gradients_[i]);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

 private:
  Tensors parameters_;
  Tensors gradients_;
};

template <class Rule>
void step_by(Optimizer& optimizer) {
  const c10::AutoGradMode no_grad(false);
  KernelLookup kernel(Rule::kKernel);
  Tensors done;
  bool some_left = false;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Rule::Options&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      std::optional<Slot> slot;
      if (parameter.is_non_overlapping_and_dense() && alike(parameter, parameter.grad()) &&
          kernel.has(parameter)) {
        slot = Rule::slot(optimizer, parameter, options);
      }
      some_left |= !slot.has_value();
      if (slot.has_value()) batches.add(parameter, *std::move(slot));
    }
    for (const Batch& batch : batches.all()) {
      Rule::step(batch, options);
      done.insert(done.end(), batch.parameters.begin(), batch.parameters.end());
    }
  }
  if (!some_left) return;
  const HiddenGradients hidden(std::move(done));
  optimizer.step();
}

}  // namespace

void fused_step(Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::AdamW)) return step_by<AdamWStep>(optimizer);
  if (type == typeid(torch::optim::Adam)) return step_by<AdamStep>(optimizer);
  if (type == typeid(torch::optim::SGD)) return step_by<SgdStep>(optimizer);
  if (type == typeid(torch::optim::Adagrad)) return step_by<AdagradStep>(optimizer);
  optimizer.step();
}

}  // namespace accelerate::detail
