#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/comm/communicator.h"

namespace accelerate {

// Note [Synchronised batch normalisation]
// LibTorch has no SyncBatchNorm, and a user's module keeps its layers as members, which nobody can exchange
// from outside. So the layers stay, and the operator under them changes: at::batch_norm has a kernel of ours,
// which looks its weight and running mean up among those of converted layers. Where it finds them and the
// layer trains, it computes with the statistics of all ranks; else it does what the operator always does, for
// the price of one atomic read. Tensors are known by identity, so ranks that are threads, several models and
// forwards that go past a prepared handle need no further care.
//   Forward: each rank sends mean, squared deviations and number of its values a channel; all combine them in
//   rank order (Chan, Golub and LeVeque 1979), so that the result is the same on all ranks.
//   Backward: each rank sends its two sums a channel over the incoming gradient; gradients of weight and bias
//   stay this rank's own, to be averaged as all others are.
// A layer without weight and without running statistics has nothing to be known by; while it is converted it
// holds tensors as running statistics that nothing reads.

/// Keeps BatchNorm layers converted while it lives; see convert_sync_batchnorm(). Not thread-safe.
class SyncBatchNorm {
 public:
  SyncBatchNorm(torch::nn::Module& module, std::shared_ptr<Communicator> communicator);
  ~SyncBatchNorm();
  SyncBatchNorm(const SyncBatchNorm&) = delete;
  SyncBatchNorm& operator=(const SyncBatchNorm&) = delete;

  /// How many layers were converted.
  int64_t layers() const noexcept { return static_cast<int64_t>(layers_.size()); }
  /// Local. To be called after a layer's weight or running statistics were replaced by other tensors
  /// (writing to them is no such case).
  void refresh();

 private:
  struct Layer;
  std::vector<std::unique_ptr<Layer>> layers_;
};

/// Local. The BatchNorm1d, 2d and 3d layers in `module`, also if it is one itself, wherever they are (named
/// members, Sequential, ModuleList), from now on take their statistics in training over the batches of all
/// ranks of `communicator`, which may differ in size; PyTorch's SyncBatchNorm. As there, eval() uses the
/// running statistics, or without them this rank's batch; while a layer trains, its forward and its backward
/// are collective. Lasts while the result lives. In a group of one nothing changes. The ranks' gradients of
/// weight and bias are their own: data parallel training averages them. Calls of the functional batch_norm in
/// the user's own layers are left alone, as are InstanceNorm layers. A rank's batch must have 0 or at least 2
/// values a channel, which is LibTorch's rule. No second derivatives: create_graph is an error in backward.
/// @throws ConfigError for a layer on a device other than the CPU, CUDA and PrivateUse1.
[[nodiscard]] std::unique_ptr<SyncBatchNorm> convert_sync_batchnorm(
    torch::nn::Module& module, std::shared_ptr<Communicator> communicator);

}  // namespace accelerate
