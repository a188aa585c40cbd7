#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/comm/process_context.h"
#include "accelerate/data/tensor_dict.h"
#include "accelerate/strategy/comm_hooks.h"
#include "accelerate/strategy/power_sgd.h"

namespace accelerate {

/// What a strategy can do. Code outside this folder asks here instead of comparing names.
struct StrategyCapabilities {
  bool distributed = false;        ///< ranks work together on one model
  bool reduces_gradients = false;  ///< backward exchanges gradients, so no_sync saves work
  bool shards_parameters = false;  ///< a rank holds only a part of the weights
};

/// Options of data parallel training; names and defaults are those of PyTorch's DistributedDataParallel.
struct DdpOptions {
  /// Gradients are sent in pieces of this size. Larger: fewer messages, less overlap.
  double bucket_cap_mb = 25;
  /// Look for parameters that a step does not use. Without it they are an error that names them.
  bool find_unused_parameters = false;
  /// Gradients are views of the buckets: one copy less and less memory.
  bool gradient_as_bucket_view = false;
  /// The used parameters and their order never change; allows unused ones at no cost. Not with gradient
  /// accumulation or no_sync, which are then an error.
  bool static_graph = false;
  /// Buffers (batch-norm statistics) follow rank 0.
  bool broadcast_buffers = true;

  // How gradients travel; names as HF's DistributedDataParallelKwargs. All work with every option above, but
  // not for sparse gradients. See Note [Communication hooks].

  /// "no" (their mean as it is), "fp16" or "bf16" (sent in half precision), "power_sgd" (sent as products of
  /// small matrices), "batched_power_sgd" (a whole bucket as one matrix: faster and coarser).
  std::string comm_hook = "no";
  /// "fp16" or "bf16": what the hook sends is in half precision on top. "no": it is not.
  std::string comm_wrapper = "no";
  /// Of power_sgd and batched_power_sgd.
  PowerSgdOptions comm_state_option = {};
  /// A hook of your own in the place of comm_hook: makes one for each prepared model. comm_hook_of() turns a
  /// function into it.
  CommHookFactory custom_comm_hook = {};

  /// The model's BatchNorm1d, 2d and 3d layers take their statistics over the batches of all ranks, see
  /// convert_sync_batchnorm(). For batches too small for statistics of their own; costs two small exchanges
  /// a layer and step. Not with join_uneven_inputs.
  bool sync_batchnorm = false;
};

/// What a strategy does for one prepared model. The handle and the Accelerator call these around the user's
/// code, on every rank alike.
class ModelStrategy {
 public:
  virtual ~ModelStrategy() = default;
  virtual void before_forward() = 0;
  /// `outputs`: all tensors that forward returned.
  virtual void after_forward(std::span<const at::Tensor> outputs) = 0;
  virtual void before_backward(const at::Tensor& loss) = 0;
  /// @throws ConfigError naming the parameters when a step left some without a gradient that the strategy
  /// needs.
  virtual void after_backward(const at::Tensor& loss) = 0;
  /// Off: gradients stay on this rank until a backward with it on.
  virtual void set_gradient_sync(bool on) = 0;
  /// On: gradients stay on this rank whatever set_gradient_sync() says, see LocalSgd.
  /// @throws ConfigError for strategies whose ranks can't train by themselves.
  virtual void set_local_training(bool on) = 0;

  // Note [Uneven inputs]
  // Ranks may run out of batches at different times (Accelerator::join_uneven_inputs). Between begin_uneven()
  // and end_uneven(), before every reduction the ranks tell one another who still trains. A rank that has no
  // batch left calls shadow_step() in a loop: it takes part in the others' collectives with zeros, so that
  // nobody waits in vain. Gradients are divided by the world size throughout, as PyTorch's join does.

  /// Local. Ranks begin to train on inputs of different lengths.
  virtual void begin_uneven() {}
  /// Collective with the other ranks' next reduction, or with their shadow_step(). Returns false once no rank
  /// trains any more.
  virtual bool shadow_step() { return false; }
  /// Collective, after shadow_step() returned false. Weights and buffers become those of a rank that trained
  /// to the end; returns which, or -1 if none trained or there is nothing to agree on.
  virtual int end_uneven() { return -1; }
};

/// Everything that differs between ways of training on several devices.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string_view name() const = 0;
  virtual StrategyCapabilities capabilities() const = 0;
  /// Collective. Takes over a model that is on its device. The module stays the user's; it outlives the
  /// result.
  /// @throws ConfigError when the ranks' models differ, naming the first parameter that does.
  virtual std::unique_ptr<ModelStrategy> prepare_model(torch::nn::Module& module) = 0;
  /// Collective where parameters are sharded. Scales the gradients of `parameters` so that their total norm
  /// is at most `max_norm` and returns the norm before (a 0-d tensor).
  virtual at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm,
                                    double norm_type) = 0;
  /// Collective where parameters are sharded. All weights and buffers under the module's own names, complete
  /// on the main process.
  virtual TensorDict full_state_dict(torch::nn::Module& module) = 0;
};

/// What make_strategy() chooses from.
struct StrategyOptions {
  /// "auto" (ddp with several ranks, else single), "single" or "ddp".
  std::string name = "auto";
  DdpOptions ddp;
};

/// @throws ConfigError for a name that is not known, or that the job's world size excludes.
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const ProcessContext& context);

}  // namespace accelerate
