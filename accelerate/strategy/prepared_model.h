#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/comm/tensor_structure.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/strategy/strategy.h"

namespace accelerate {

namespace detail {

/// A prepared model, whatever its type.
struct ModelCore {
  std::shared_ptr<torch::nn::Module> module;
  std::unique_ptr<ModelStrategy> strategy;
  ForwardPrecision precision;
};

/// A module holder, as TORCH_MODULE makes, or a shared_ptr to a module.
template <class M>
struct ModulePointer;
template <class M>
requires std::is_base_of_v<torch::nn::Module, M>
struct ModulePointer<std::shared_ptr<M>> {
  using Impl = M;
  static std::shared_ptr<M> get(const std::shared_ptr<M>& model) { return model; }
};
template <class M>
requires requires(const M& model) {
  typename M::ContainedType;
  model.ptr();
}
struct ModulePointer<M> {
  using Impl = typename M::ContainedType;
  static std::shared_ptr<Impl> get(const M& model) { return model.is_empty() ? nullptr : model.ptr(); }
};

}  // namespace detail

/// A user's model within an Accelerator. `model->forward(x)`, `model.forward(x)` and `model(x)` all run the
/// user's forward with what the strategy needs around it; `operator->` gives the handle itself. unwrap()
/// gives the user's own model back, whose weights are the ones that are trained. Cheap to copy: copies are
/// the same model.
template <class M>
class PreparedModel {
 public:
  using Impl = typename detail::ModulePointer<M>::Impl;

  PreparedModel(M model, std::shared_ptr<detail::ModelCore> core)
      : model_(std::move(model)), impl_(detail::ModulePointer<M>::get(model_)), core_(std::move(core)) {}

  PreparedModel* operator->() { return this; }
  const PreparedModel* operator->() const { return this; }
  PreparedModel& operator*() { return *this; }

  /// The user's forward, with its arguments and its result; under mixed precision within an AutocastGuard,
  /// its half-precision outputs converted to float32.
  template <class... Args>
  auto forward(Args&&... args) {
    core_->strategy->before_forward();
    auto output = core_->precision.run([&] { return impl_->forward(std::forward<Args>(args)...); });
    if constexpr (std::is_same_v<decltype(output), at::Tensor>) {
      core_->strategy->after_forward({&output, 1});
    } else {
      const std::vector<at::Tensor> tensors = collect_tensors(output);
      core_->strategy->after_forward(tensors);
    }
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  // As torch::nn::Module has them.
  std::vector<at::Tensor> parameters(bool recurse = true) const { return impl_->parameters(recurse); }
  auto named_parameters(bool recurse = true) const { return impl_->named_parameters(recurse); }
  std::vector<at::Tensor> buffers(bool recurse = true) const { return impl_->buffers(recurse); }
  auto named_buffers(bool recurse = true) const { return impl_->named_buffers(recurse); }
  auto children() const { return impl_->children(); }
  auto modules(bool include_self = true) const { return impl_->modules(include_self); }
  void train(bool on = true) { impl_->train(on); }
  void eval() { impl_->eval(); }
  /// As torch::nn::Module::to(). Change dtype before prepare(): ranks already agreed on the parameters.
  template <class... Args>
  void to(Args&&... args) {
    impl_->to(std::forward<Args>(args)...);
  }
  /// Clears the gradients of all parameters, also those that are views of a strategy's buckets.
  void zero_grad() {
    for (const at::Tensor& parameter : impl_->parameters()) parameter.mutable_grad().reset();
  }
  bool is_training() const noexcept { return impl_->is_training(); }

  /// The user's own model.
  M& unwrap() { return model_; }
  const M& unwrap() const { return model_; }
  const std::shared_ptr<detail::ModelCore>& core() const { return core_; }

 private:
  M model_;
  std::shared_ptr<Impl> impl_;
  std::shared_ptr<detail::ModelCore> core_;
};

}  // namespace accelerate
