#include "accelerate/strategy/comm_hooks.h"

#include <c10/core/GradMode.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/comm_hooks_internal.h"

namespace accelerate {
namespace {

using Future = c10::ivalue::Future;

std::vector<c10::Device> devices_of(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? std::vector<c10::Device>() : std::vector<c10::Device>{tensor.device()};
}

// Halves what is sent: gradients travel as float16 or bfloat16.
class CompressHook final : public CommHook {
 public:
  explicit CompressHook(at::ScalarType dtype) : dtype_(dtype) {}

  TensorFuture run(const GradientBucket& bucket, Communicator& communicator) override {
    // Divided before the sum, which could exceed what float16 holds.
    const at::Tensor compressed = bucket.buffer.to(dtype_).div_(communicator.size());
    return then(all_reduce_async(communicator, compressed),
                [buffer = bucket.buffer](const at::Tensor& sum) { return buffer.copy_(sum); });
  }

 private:
  at::ScalarType dtype_;
};

// Hands another hook the gradients in half precision.
class CompressWrapper final : public CommHook {
 public:
  CompressWrapper(at::ScalarType dtype, std::unique_ptr<CommHook> inner)
      : dtype_(dtype), inner_(std::move(inner)) {}

  TensorFuture run(const GradientBucket& bucket, Communicator& communicator) override {
    GradientBucket half = bucket;
    half.buffer = bucket.buffer.to(dtype_);
    for (at::Tensor& gradient : half.gradients) {
      const int64_t offset = gradient.storage_offset() - bucket.buffer.storage_offset();
      gradient = half.buffer.narrow(0, offset, gradient.numel()).view(gradient.sizes());
    }
    return then(inner_->run(half, communicator), [buffer = bucket.buffer](const at::Tensor& result) {
      return buffer.copy_(result.view_as(buffer));
    });
  }

 private:
  at::ScalarType dtype_;
  std::unique_ptr<CommHook> inner_;
};

class FunctionHook final : public CommHook {
 public:
  using Function = std::function<at::Tensor(const GradientBucket&, Communicator&)>;
  explicit FunctionHook(Function function) : function_(std::move(function)) {}

  TensorFuture run(const GradientBucket& bucket, Communicator& communicator) override {
    const at::Tensor result = function_(bucket, communicator);
    return result.defined() ? ready(result) : nullptr;
  }

 private:
  Function function_;
};

class C10dHook final : public c10d::CommHookInterface {
 public:
  C10dHook(std::unique_ptr<CommHook> hook, std::shared_ptr<Communicator> communicator)
      : hook_(std::move(hook)), communicator_(std::move(communicator)) {}

  TensorFuture runHook(c10d::GradBucket& bucket) override {
    const at::NoGradGuard no_grad;
    const at::Tensor& buffer = bucket.getBuffer();
    const TensorFuture future = hook_->run({.index = static_cast<int64_t>(bucket.getIndex()),
                                            .is_last = bucket.isLast(),
                                            .buffer = buffer,
                                            .gradients = bucket.getGradients(),
                                            .parameters = bucket.getParameters()},
                                           *communicator_);
    if (!future) fail("no tensor");
    return then(future, [this, numel = buffer.numel(), device = buffer.device()](const at::Tensor& result) {
      if (!result.defined()) fail("no tensor");
      if (result.numel() != numel || result.device() != device || result.is_sparse()) {
        fail(concat(result.numel(), " elements on ", result.device(), " for ", numel, " on ", device));
      }
      return result.reshape({numel});
    });
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  [[noreturn]] void fail(const std::string& got) const {
    throw ConfigError({.what = "result of a communication hook",
                       .expected = "a dense tensor of as many elements as the bucket, on its device",
                       .got = got,
                       .rank = communicator_->rank()});
  }

  std::unique_ptr<CommHook> hook_;
  std::shared_ptr<Communicator> communicator_;
};

at::ScalarType half_dtype(const std::string& name) {
  return name == "fp16" ? at::kHalf : at::kBFloat16;
}

void check_name(const char* option, const std::string& value, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  const auto near = nearest_name(value, names);
  throw ConfigError({.what = concat(option, " (DdpOptions)"),
                     .expected = concat("one of ", join(names, ", ")),
                     .got = concat("'", value, "'"),
                     .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

}  // namespace

CommHookFactory::CommHookFactory() = default;
CommHookFactory::CommHookFactory(const CommHookFactory&) = default;
CommHookFactory& CommHookFactory::operator=(const CommHookFactory&) = default;
CommHookFactory::~CommHookFactory() = default;

CommHookFactory comm_hook_of(
    std::function<at::Tensor(const GradientBucket& bucket, Communicator& communicator)> function) {
  return CommHookFactory(
      [function = std::move(function)] { return std::make_unique<FunctionHook>(function); });
}

TensorFuture all_reduce_async(Communicator& communicator, const at::Tensor& tensor) {
  const auto group = communicator.process_group();
  if (!group) return ready(tensor);
  std::vector<at::Tensor> tensors = {tensor};
  return group->allreduce(tensors)->getFuture()->then(
      [](Future& future) { return at::IValue(future.value().toTensorVector().at(0)); },
      c10::TensorType::get());
}

TensorFuture then(const TensorFuture& future, std::function<at::Tensor(const at::Tensor&)> function) {
  return future->then(
      [function = std::move(function)](Future& done) {
        const at::NoGradGuard no_grad;
        return at::IValue(function(done.value().toTensor()));
      },
      c10::TensorType::get());
}

TensorFuture ready(const at::Tensor& tensor) {
  auto future = c10::make_intrusive<Future>(c10::TensorType::get(), devices_of(tensor));
  future->markCompleted(tensor);
  return future;
}

namespace detail {

void check_comm_hook_options(const DdpOptions& options) {
  check_name("comm_hook", options.comm_hook, {"no", "fp16", "bf16", "power_sgd", "batched_power_sgd"});
  check_name("comm_wrapper", options.comm_wrapper, {"no", "fp16", "bf16"});
  const bool own = static_cast<bool>(options.custom_comm_hook);
  if (own && options.comm_hook != "no") {
    throw ConfigError(
        {.what = concat("custom_comm_hook (DdpOptions) with comm_hook '", options.comm_hook, "'"),
         .hint = "Gradients travel in one way: leave one of them out."});
  }
  if (options.comm_wrapper != "no" && !own && options.comm_hook == "no") {
    throw ConfigError({.what = concat("comm_wrapper '", options.comm_wrapper,
                                      "' (DdpOptions) without a hook that it could wrap"),
                       .hint = concat("Say comm_hook = \"", options.comm_wrapper, "\".")});
  }
  if (options.comm_hook == "power_sgd" || options.comm_hook == "batched_power_sgd") {
    check_power_sgd(options.comm_state_option);
  }
}

std::unique_ptr<CommHook> make_comm_hook(const DdpOptions& options) {
  std::unique_ptr<CommHook> hook;
  if (options.custom_comm_hook) {
    hook = options.custom_comm_hook();
    if (!hook) throw ConfigError({.what = "custom_comm_hook (DdpOptions) made no hook"});
  } else if (options.comm_hook == "fp16" || options.comm_hook == "bf16") {
    hook = std::make_unique<CompressHook>(half_dtype(options.comm_hook));
  } else if (options.comm_hook != "no") {
    hook = make_power_sgd(options.comm_state_option, options.comm_hook == "batched_power_sgd");
  }
  if (hook && options.comm_wrapper != "no") {
    hook = std::make_unique<CompressWrapper>(half_dtype(options.comm_wrapper), std::move(hook));
  }
  return hook;
}

std::unique_ptr<c10d::CommHookInterface> as_c10d_hook(std::unique_ptr<CommHook> hook,
                                                      std::shared_ptr<Communicator> communicator) {
  return std::make_unique<C10dHook>(std::move(hook), std::move(communicator));
}

}  // namespace detail
}  // namespace accelerate
