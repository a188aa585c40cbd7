#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "accelerate/comm/communicator.h"

namespace accelerate {

// Note [Communication hooks]
// Data parallel training hands each bucket of gradients to a hook as soon as the backward pass has filled it,
// always in the order of the bucket's index, on the thread that runs backward. The hook starts what it has to
// send and returns a future, so that the backward pass goes on while gradients travel; at the end of backward
// the futures are waited for, and what they hold becomes the parameters' gradients.
//
// Every rank must start the same collectives in the same order. A hook therefore starts collectives only
// while it is called, never from a future's callback: callbacks run whenever a message has arrived, and with
// several buckets under way the ranks' orders would differ. PyTorch's PowerSGD does start them from
// callbacks, which is in order on NCCL but not on Gloo. Ours moves the buckets under way one stage on each
// time the next bucket is ready, and finishes all of them at the last.

/// One bucket of gradients on its way to the other ranks.
struct GradientBucket {
  /// Buckets of a backward pass count from 0. After the first reduced backward pass they are made anew in the
  /// order in which gradients arrived, so what a hook remembers of an index is of use only from the second
  /// on.
  int64_t index = 0;
  /// No other bucket follows in this backward pass.
  bool is_last = false;
  /// All gradients of the bucket, one after the other: 1-d, of this rank's device and the parameters' dtype,
  /// not yet divided by the number of ranks. May be written to.
  at::Tensor buffer;
  /// The same, as views of `buffer` in the parameters' shapes.
  std::vector<at::Tensor> gradients;
  /// The parameters that the gradients belong to, in the same order.
  std::vector<at::Tensor> parameters;
};

/// A tensor that is not there yet: a future whose value is one tensor.
using TensorFuture = c10::intrusive_ptr<c10::ivalue::Future>;

/// How buckets of gradients travel. One object serves one prepared model on one rank, so it may keep state
/// from step to step. See Note [Communication hooks]. Derive from it for hooks whose work goes on beside the
/// backward pass; a function is enough for others, see comm_hook_of().
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Collective in the order of buckets. Starts the reduction of `bucket` over the ranks of `communicator`
  /// and returns its future result: a tensor of as many elements as `bucket.buffer`, on its device; that
  /// buffer itself (written to in place) saves a copy. The result should be a mean over the ranks: nothing is
  /// divided afterwards. Runs without recording gradients. In Accelerator::join_uneven_inputs() a rank
  /// that ran out of batches calls it with zeros. What it throws comes out of backward.
  virtual TensorFuture run(const GradientBucket& bucket, Communicator& communicator) = 0;
};

/// Makes the hook of one prepared model: any function without arguments that returns a
/// unique_ptr<CommHook>. Empty by default.
class CommHookFactory {
 public:
  // Not inline: g++ 12 would take a default that it sees the inside of for uninitialized.
  CommHookFactory();
  CommHookFactory(const CommHookFactory&);
  CommHookFactory& operator=(const CommHookFactory&);
  ~CommHookFactory();
  template <class F>
  requires std::is_invocable_r_v<std::unique_ptr<CommHook>, F&> CommHookFactory(F make) : CommHookFactory() {
    make_ = std::make_shared<std::function<std::unique_ptr<CommHook>()>>(std::move(make));
  }

  explicit operator bool() const { return make_ != nullptr; }
  std::unique_ptr<CommHook> operator()() const { return (*make_)(); }

 private:
  std::shared_ptr<const std::function<std::unique_ptr<CommHook>()>> make_;
};

/// A hook that is one function, done when it returns: takes a bucket, returns its reduced gradients (often
/// `bucket.buffer` after communicator.all_reduce(buffer, ReduceOp::kMean)). The function is shared by all
/// models it is used for.
CommHookFactory comm_hook_of(
    std::function<at::Tensor(const GradientBucket& bucket, Communicator& communicator)> function);

/// Collective. Starts the sum of `tensor` over all ranks, in place; the future holds `tensor`. `tensor` is
/// dense and contiguous. For CommHook::run().
TensorFuture all_reduce_async(Communicator& communicator, const at::Tensor& tensor);

/// `function` of the future tensor: runs once it is there, on whichever thread brings it. It must start no
/// collectives.
TensorFuture then(const TensorFuture& future, std::function<at::Tensor(const at::Tensor&)> function);

/// A tensor that is there already.
TensorFuture ready(const at::Tensor& tensor);

}  // namespace accelerate
