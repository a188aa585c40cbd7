#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/bucket_memory.h"

namespace accelerate::detail {

// Note [Several machines]
// With R ranks on each of M machines, rank r of a machine belongs to three groups: the shared memory of its
// machine, a Gloo group of all ranks that have number r on their machine, and a Gloo group of all ranks. An
// all-reduce runs in shared memory first; then each rank r all-reduces the r-th part of the sum with its
// counterparts, so that all connections between machines work at once and each byte crosses them once for a
// machine, not once for a rank; then the parts are exchanged in shared memory. What has no such form runs in
// the group of all ranks. Operations run one after another in a thread of the back end, so that a backward
// goes on meanwhile.

/// Where a rank is: ranks are numbered machine by machine, equally many on each.
struct MachineLayout {
  int machine = 0;
  int machines = 1;
  int local_rank = 0;
  int local_size = 1;
};

class HierarchicalBackend final : public c10d::Backend, public BucketMemorySource {
 public:
  using Inner = c10::intrusive_ptr<c10d::Backend>;
  HierarchicalBackend(const MachineLayout& layout, Inner local, Inner across, Inner all);
  ~HierarchicalBackend() override;

  const std::string getBackendName() const override { return "hierarchical"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  // By machine:
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  // Among all:
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work send(Tensors& tensors, int destination, int tag) override;
  Work recv(Tensors& tensors, int source, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  std::unique_ptr<BucketMemory> make_bucket_memory(size_t bytes) override;

 private:
  /// `action` after all that was begun before; its Work.
  Work begin(c10d::OpType type, Tensors outputs, std::function<void()> action);
  void drain();
  void run();
  void all_reduce(at::Tensor tensor, const c10d::ReduceOp& op, std::chrono::milliseconds timeout);
  void all_gather(const Tensors& outputs, const at::Tensor& input, std::chrono::milliseconds timeout);
  void reduce_scatter_one(at::Tensor output, const Tensors& inputs, const c10d::ReduceOp& op,
                          std::chrono::milliseconds timeout);

  MachineLayout layout_;
  Inner local_;   // the ranks of this machine
  Inner across_;  // the ranks with this rank's number on all machines
  Inner all_;
  uint64_t sequence_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
