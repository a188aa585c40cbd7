#include "accelerate/strategy/sync_batchnorm.h"

#include <ATen/Functions.h>
#include <ATen/ops/batch_norm_native.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

// What the operator must know of a converted layer.
struct Converted {
  std::weak_ptr<torch::nn::Module> module;
  std::shared_ptr<Communicator> communicator;
  bool stateless = false;  // its running statistics are there only to be known by
};

// Converted layers by the tensors that their operator is given. One for the process: a tensor is one layer's,
// whichever Accelerator and thread it belongs to.
class Registry {
 public:
  static Registry& get() {
    static Registry registry;
    return registry;
  }

  void add(const at::Tensor& tensor, std::shared_ptr<const Converted> layer) {
    const std::unique_lock lock(mutex_);
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                              Entry{WeakTensor(tensor.getIntrusivePtr()), std::move(layer)});
    size_ = entries_.size();
  }

  // Only if it is still `layer`'s: layers may share a weight.
  void remove(const c10::TensorImpl* tensor, const std::shared_ptr<const Converted>& layer) {
    const std::unique_lock lock(mutex_);
    const auto entry = entries_.find(tensor);
    if (entry != entries_.end() && entry->second.layer == layer) entries_.erase(entry);
    size_ = entries_.size();
  }

  std::shared_ptr<const Converted> find(const MaybeTensor& first, const MaybeTensor& second) const {
    if (size_ == 0) return nullptr;
    const std::shared_lock lock(mutex_);
    for (const MaybeTensor* tensor : {&first, &second}) {
      if (!tensor->has_value() || !(*tensor)->defined()) continue;
      const auto entry = entries_.find((*tensor)->unsafeGetTensorImpl());
      if (entry != entries_.end()) return entry->second.layer;
    }
    return nullptr;
  }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    WeakTensor tensor;  // while it lives, no other tensor gets this address
    std::shared_ptr<const Converted> layer;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  std::atomic<size_t> size_ = 0;
};

struct Group : torch::CustomClassHolder {
  explicit Group(std::shared_ptr<Communicator> value) : communicator(std::move(value)) {}
  std::shared_ptr<Communicator> communicator;
};

struct Call {
  std::shared_ptr<Communicator> communicator;
  MaybeTensor running_mean, running_var;
  double momentum, eps;
};

std::vector<int64_t> all_but_channels(const at::Tensor& tensor) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < tensor.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// One number a channel, so that it meets `like`.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> sizes(static_cast<size_t>(like.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

at::ScalarType computing_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool is_given(const MaybeTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

struct Statistics {
  at::Tensor mean, squares, count;  // float64; squares of deviations from the mean, summed
};

Statistics joint_statistics(const at::Tensor& input, Communicator& communicator) {
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const auto options = input.options().dtype(at::kDouble);
  at::Tensor own = at::zeros({1, 2 * channels + 1}, options);
  if (count > 0) {
    const auto [var, mean] = at::var_mean(input.to(computing_type(input)), all_but_channels(input),
                                          /*correction=*/std::optional<at::Scalar>(0), /*keepdim=*/false);
    own[0].narrow(0, 0, channels).copy_(mean);
    own[0].narrow(0, channels, channels).copy_(var).mul_(count);
    own[0].narrow(0, 2 * channels, 1).fill_(count);
  }
  const at::Tensor all = communicator.all_gather(own);
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor squares = all.narrow(1, channels, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum().clamp_min(1);
  const at::Tensor mean = (means * counts).sum(0) / total;
  return {mean, (squares + counts * (means - mean).square()).sum(0), total};
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const MaybeTensor& weight, const MaybeTensor& bias, const Call* call) {
    const Statistics joint = joint_statistics(input, *call->communicator);
    const at::Tensor var = joint.squares / joint.count;
    if (is_given(call->running_mean)) {
      call->running_mean->mul_(1 - call->momentum).add_(joint.mean, call->momentum);
      call->running_var->mul_(1 - call->momentum)
          .add_(joint.squares / (joint.count - 1).clamp_min(1), call->momentum);
    }
    const auto type = computing_type(input);
    const at::Tensor mean = joint.mean.to(type);
    const at::Tensor inverse = (var + call->eps).rsqrt().to(type);
    const at::Tensor scale = is_given(weight) ? inverse * *weight : inverse;
    at::Tensor output = (input.to(type) - by_channel(mean, input)).mul_(by_channel(scale, input));
    if (is_given(bias)) output.add_(by_channel(*bias, input));

    context->save_for_backward(
        {input, is_given(weight) ? *weight : at::Tensor(), mean, inverse, joint.count});
    context->saved_data["group"] = at::IValue::make_capsule(c10::make_intrusive<Group>(call->communicator));
    context->saved_data["bias"] = is_given(bias);
    return output.to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto group = c10::static_intrusive_pointer_cast<Group>(context->saved_data["group"].toCapsule());
    if (at::GradMode::is_enabled()) {
      throw Error({.what = "second derivatives (create_graph) through a synchronised BatchNorm layer",
                   .hint = "Leave sync_batchnorm off for this model.",
                   .rank = group->communicator->rank()});
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse = saved[3];
    const auto type = computing_type(input);
    const auto dims = all_but_channels(input);
    const at::Tensor incoming = gradients[0].to(type);
    const at::Tensor deviation = input.to(type) - by_channel(saved[2], input);
    const at::Tensor sum = incoming.sum(dims);
    const at::Tensor product = (incoming * deviation).sum(dims);

    torch::autograd::variable_list out(4);
    size_t edge = 1;
    if (weight.defined() && context->needs_input_grad(edge++))
      out[1] = (product * inverse).to(weight.dtype());
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(edge)) out[2] = sum;
    if (!context->needs_input_grad(0)) return out;
    at::Tensor sums = at::stack({sum, product}).to(at::kDouble);
    group->communicator->all_reduce(sums);
    sums.div_(saved[4]);
    const at::Tensor slope = (sums[1] * inverse.square()).to(type);
    const at::Tensor scale = weight.defined() ? inverse * weight : inverse;
    out[0] = (incoming - by_channel(sums[0].to(type), input))
                 .sub_(deviation.mul_(by_channel(slope, input)))
                 .mul_(by_channel(scale, input))
                 .to(input.scalar_type());
    return out;
  }
};

// In the place of at::batch_norm, see Note [Synchronised batch normalisation].
at::Tensor batch_norm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                      const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training,
                      double momentum, double eps, bool cudnn_enabled) {
  const auto layer = training ? Registry::get().find(running_mean, weight) : nullptr;
  if (!layer) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  const MaybeTensor mean = layer->stateless ? MaybeTensor() : running_mean;
  const MaybeTensor var = layer->stateless ? MaybeTensor() : running_var;
  const auto module = layer->module.lock();
  if (!module || !module->is_training()) {
    return at::native::batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled);
  }
  const Call call = {layer->communicator, mean, var, momentum, eps};
  return SyncBatchNormFunction::apply(input, weight, bias, &call);
}

// A layer's members, whichever of the three types it has.
struct Members {
  at::Tensor* weight = nullptr;
  at::Tensor* running_mean = nullptr;
  at::Tensor* running_var = nullptr;
  int64_t channels = 0;
};

template <class... Types>
std::optional<Members> members_of(torch::nn::Module& module) {
  std::optional<Members> out;
  const auto look = [&](auto* layer) {
    if (layer == nullptr) return;
    out = Members{&layer->weight, &layer->running_mean, &layer->running_var, layer->options.num_features()};
  };
  (look(dynamic_cast<Types*>(&module)), ...);
  return out;
}

std::optional<Members> batch_norm_members(torch::nn::Module& module) {
  return members_of<torch::nn::BatchNorm1dImpl, torch::nn::BatchNorm2dImpl, torch::nn::BatchNorm3dImpl>(
      module);
}

}  // namespace

struct SyncBatchNorm::Layer {
  std::shared_ptr<Converted> converted;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> known;
  at::Tensor marks[2];  // of a stateless layer

  void learn(const Members& members) {
    for (const at::Tensor* tensor : {members.weight, members.running_mean}) {
      if (!tensor->defined()) continue;
      Registry::get().add(*tensor, converted);
      known.emplace_back(tensor->getIntrusivePtr());
    }
  }

  void forget() {
    for (const auto& tensor : known) Registry::get().remove(tensor._unsafe_get_target(), converted);
    known.clear();
  }

  bool is_current(const Members& members) const {
    size_t next = 0;
    for (const at::Tensor* tensor : {members.weight, members.running_mean}) {
      if (!tensor->defined()) continue;
      if (next == known.size() || known[next]._unsafe_get_target() != tensor->unsafeGetTensorImpl())
        return false;
      ++next;
    }
    return next == known.size();
  }
};

SyncBatchNorm::SyncBatchNorm(torch::nn::Module& module, std::shared_ptr<Communicator> communicator) {
  if (!communicator || communicator->size() == 1) return;
  for (const auto& child : module.modules()) {
    const auto members = batch_norm_members(*child);
    if (!members) continue;
    const at::Tensor& state = members->weight->defined() ? *members->weight : *members->running_mean;
    if (state.defined() && !state.is_cpu() && !state.is_cuda() && !state.is_privateuseone()) {
      throw ConfigError({.what = "sync_batchnorm: a BatchNorm layer",
                         .expected = "weights on the CPU or a CUDA device",
                         .got = state.device().str(),
                         .rank = communicator->rank()});
    }
    auto layer = std::make_unique<Layer>();
    layer->converted = std::make_shared<Converted>(
        Converted{.module = child, .communicator = communicator, .stateless = !state.defined()});
    if (layer->converted->stateless) {
      *members->running_mean = layer->marks[0] = at::zeros({members->channels});
      *members->running_var = layer->marks[1] = at::ones({members->channels});
    }
    layer->learn(*members);
    layers_.push_back(std::move(layer));
  }
}

SyncBatchNorm::~SyncBatchNorm() {
  for (const auto& layer : layers_) {
    layer->forget();
    const auto module = layer->converted->module.lock();
    if (!module || !layer->converted->stateless) continue;
    const auto members = batch_norm_members(*module);
    if (members->running_mean->is_same(layer->marks[0])) members->running_mean->reset();
    if (members->running_var->is_same(layer->marks[1])) members->running_var->reset();
  }
}

void SyncBatchNorm::refresh() {
  for (const auto& layer : layers_) {
    const auto module = layer->converted->module.lock();
    if (!module) continue;
    const auto members = batch_norm_members(*module);
    if (layer->is_current(*members)) continue;
    layer->forget();
    layer->learn(*members);
  }
}

std::unique_ptr<SyncBatchNorm> convert_sync_batchnorm(torch::nn::Module& module,
                                                      std::shared_ptr<Communicator> communicator) {
  return std::make_unique<SyncBatchNorm>(module, std::move(communicator));
}

// A kernel for the keys under and above recording of gradients; the operator's own is for any key that has
// none.
#define ACCELERATE_BATCH_NORM_KERNEL(key)             \
  TORCH_LIBRARY_IMPL(aten, key, library) {            \
    library.impl("batch_norm", TORCH_FN(batch_norm)); \
  }
ACCELERATE_BATCH_NORM_KERNEL(CPU)
ACCELERATE_BATCH_NORM_KERNEL(AutogradCPU)
ACCELERATE_BATCH_NORM_KERNEL(CUDA)
ACCELERATE_BATCH_NORM_KERNEL(AutogradCUDA)
ACCELERATE_BATCH_NORM_KERNEL(PrivateUse1)
ACCELERATE_BATCH_NORM_KERNEL(AutogradPrivateUse1)
#undef ACCELERATE_BATCH_NORM_KERNEL

}  // namespace accelerate
