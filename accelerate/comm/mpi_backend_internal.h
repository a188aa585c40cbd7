#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/mpi/group.h"
#include "accelerate/comm/plain_tensors_internal.h"

namespace accelerate::detail {

// Note [The mpi back end]
// c10d's view of mpi::Group: collectives and messages between processes that mpirun started. Operations run
// on the progress thread and overlap with what the caller does next; their Work and its future end there,
// with an error if the deadline passes. Tensors that are not contiguous go through a copy. All-reduces,
// broadcasts, reductions and gathers of equal parts are MPI's collectives; what has parts of different sizes,
// and gather, scatter and all-to-all, are messages between pairs of ranks, sent from and received into the
// tensors where they lie. Sums of half precision are rounded after each pair of ranks, as NCCL's are.
// All-reduces of sparse tensors go to a Gloo group that is made at the first one.

class MpiBackend final : public c10d::Backend {
 public:
  /// `request` is for the Gloo group, if one is needed.
  MpiBackend(std::unique_ptr<mpi::Group> group, const BackendRequest& request);

  const std::string getBackendName() const override { return "mpi"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_ = timeout.count(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  /// Outputs may differ in size, if they do so alike on all ranks.
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

 private:
  using Start = std::function<void(mpi::Calls&)>;
  using Finish = std::function<void()>;
  struct Part {
    int peer;
    at::Tensor tensor;  // contiguous
  };

  std::chrono::milliseconds timeout(std::chrono::milliseconds wanted) const;
  void check(bool ok, const char* operation, const std::string& expected) const;
  bool is_usable(const at::Tensor& tensor) const;
  bool all_usable(const Tensors& tensors, const at::Tensor& model, bool same_numel) const;
  shm::Reduction reduction(const c10d::ReduceOp& op, shm::Element element) const;
  /// `finish` runs on the progress thread when MPI is done.
  Work run(c10d::OpType type, std::string name, Tensors outputs, std::chrono::milliseconds wanted,
           Start start, Finish finish);
  Work exchange(c10d::OpType type, const char* name, Tensors outputs, std::vector<Part> from,
                std::vector<Part> to, std::chrono::milliseconds wanted, Finish finish);
  Work reduce_scatter_joined(c10d::OpType type, const at::Tensor& output, const at::Tensor& joined,
                             const c10d::ReduceScatterOptions& options);
  Work message(Tensors& tensors, int peer, int tag, bool is_send);
  c10d::Backend& gloo();

  std::unique_ptr<mpi::Group> group_;
  BackendRequest request_;
  std::atomic<int64_t> timeout_ms_;
  bool cuda_aware_;
  std::mutex gloo_mutex_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::atomic<uint64_t> sequence_ = 0;
};

/// As make_mpi_backend(), with `largest_count` elements or bytes in one call of MPI.
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const BackendRequest& request, size_t largest_count);

}  // namespace accelerate::detail
