#include "accelerate/comm/watched_backend.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace accelerate::detail {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

const at::Tensor& first(const Tensors& tensors) {
  static const at::Tensor none;
  return tensors.empty() ? none : tensors.front();
}

class WatchedBackend final : public c10d::Backend {
 public:
  WatchedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<OperationLog> log)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), log_(std::move(log)) {
    bound_device_id_ = inner_->getBoundDeviceId();
  }

  // What is no operation goes through as it is.
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  bool supportsTimeEstimation() const override { return inner_->supportsTimeEstimation(); }
  bool supportsShrinking() const override { return inner_->supportsShrinking(); }
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options) override {
    return inner_->shrink(excluded, flags, options);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void startCoalescing() override { inner_->startCoalescing(); }
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override {
    return inner_->split(store, ranks, options);
  }
  c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                    const c10::intrusive_ptr<Options>& options, const int& rank,
                                    const int& size) override {
    return inner_->merge(store, options, rank, size);
  }
  void setGroupUid(const std::string& uid) override {
    Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void eagerConnectSingleDevice(at::Device device) override { inner_->eagerConnectSingleDevice(device); }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return inner_->supportsTensorAlloc(device); }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

  // The operations.
  Work endCoalescing() override {
    return watch("coalesced operations", at::Tensor(), [&] { return inner_->endCoalescing(); });
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return watch("all_reduce", first(tensors), [&] { return inner_->allreduce(tensors, options); });
  }
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return watch("all_reduce (sparse)", first(tensors),
                 [&] { return inner_->allreduce_sparse(tensors, options); });
  }
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return watch("all_reduce (several)", first(tensors),
                 [&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return watch("broadcast", first(tensors), [&] { return inner_->broadcast(tensors, options); });
  }
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return watch("reduce", first(tensors), [&] { return inner_->reduce(tensors, options); });
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    return watch("all_gather", first(inputs), [&] { return inner_->allgather(outputs, inputs, options); });
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    return watch("all_gather", input, [&] { return inner_->_allgather_base(output, input, options); });
  }
  Work allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override {
    return watch("all_gather (several)", first(inputs),
                 [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
  }
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override {
    return watch("all_gather (several)", first(inputs),
                 [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return watch("gather", first(inputs), [&] { return inner_->gather(outputs, inputs, options); });
  }
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return watch("scatter", first(outputs), [&] { return inner_->scatter(outputs, inputs, options); });
  }
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override {
    return watch("reduce_scatter", first(outputs),
                 [&] { return inner_->reduce_scatter(outputs, inputs, options); });
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    return watch("reduce_scatter", input,
                 [&] { return inner_->_reduce_scatter_base(output, input, options); });
  }
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override {
    return watch("reduce_scatter (several)", first(inputs),
                 [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return watch("all_to_all", input,
                 [&] { return inner_->alltoall_base(output, input, output_sizes, input_sizes, options); });
  }
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return watch("all_to_all", first(inputs), [&] { return inner_->alltoall(outputs, inputs, options); });
  }
  Work barrier(const c10d::BarrierOptions& options) override {
    return watch("barrier", at::Tensor(), [&] { return inner_->barrier(options); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const OperationLog::Scope scope(*log_, "barrier", at::Tensor());
    inner_->monitoredBarrier(options, wait_all_ranks);
  }

  Work send(Tensors& tensors, int destination, int tag) override {
    OperationLog::Scope scope(*log_, "send to", first(tensors), destination);
    return noted(scope, inner_->send(tensors, destination, tag));
  }
  Work recv(Tensors& tensors, int source, int tag) override {
    OperationLog::Scope scope(*log_, "receive from", first(tensors), source);
    return noted(scope, inner_->recv(tensors, source, tag));
  }
  Work recvAnysource(Tensors& tensors, int tag) override {
    OperationLog::Scope scope(*log_, "receive from any rank", first(tensors), -1);
    return noted(scope, inner_->recvAnysource(tensors, tag));
  }

 private:
  template <class Start>
  Work watch(const char* name, const at::Tensor& tensor, const Start& start) {
    OperationLog::Scope scope(*log_, name, tensor);
    return noted(scope, start());
  }
  static Work noted(OperationLog::Scope& scope, Work work) {
    scope.goes_on(work);
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<OperationLog> log_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> watch_operations(c10::intrusive_ptr<c10d::Backend> backend,
                                                   std::shared_ptr<OperationLog> log) {
  return c10::make_intrusive<WatchedBackend>(std::move(backend), std::move(log));
}

}  // namespace accelerate::detail
