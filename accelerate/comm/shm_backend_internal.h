#pragma once

#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/bucket_memory.h"
#include "accelerate/comm/shm/mailbox.h"

namespace accelerate::detail {

// Note [The shm back end]
// c10d's view of shm::Group: collectives of CPU tensors between ranks of one machine. An operation runs in
// the caller and is complete when the call returns, so that its Work never has to be waited for; an error
// comes out of the call. Tensors that are not contiguous go through a copy. All-reduces of sparse tensors go
// to a Gloo group that is made at the first one.

class ShmBackend final : public c10d::Backend, public BucketMemorySource {
 public:
  /// Enters `group`. `request` is for the Gloo group, if one is needed.
  ShmBackend(std::unique_ptr<shm::Group> group, const BackendRequest& request);

  const std::string getBackendName() const override { return "shm"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  std::unique_ptr<BucketMemory> make_bucket_memory(size_t bytes) override;

 private:
  shm::Group::Timeout timeout(std::chrono::milliseconds wanted) const;
  void all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op, std::chrono::milliseconds wanted);
  void all_gather(const Tensors& outputs, const at::Tensor& input, std::chrono::milliseconds wanted);
  void reduce_scatter_one(at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                          std::chrono::milliseconds wanted);
  void check(bool ok, const char* operation, const std::string& expected) const;
  Work done(c10d::OpType type, Tensors outputs);
  c10d::Backend& gloo();
  shm::Mailbox& mailbox();
  Work receive(Tensors& tensors, int source, int tag);

  std::mutex mutex_;  // one operation at a time
  std::unique_ptr<shm::Group> group_;
  BackendRequest request_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<shm::Mailbox> mailbox_;  // after the group, in which it works
  c10::intrusive_ptr<c10d::Backend> gloo_;
  uint64_t sequence_ = 0;
};

}  // namespace accelerate::detail
