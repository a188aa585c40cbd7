#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/bucket_memory.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/log.h"
#include "accelerate/environment/topology.h"

namespace c10d {
class ProcessGroup;
}

namespace accelerate {

enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

/// How NCCL runs (CUDA variant only). What is left out is NCCL's own choice, or what its NCCL_* variables
/// say.
struct NcclOptions {
  /// Collectives run on streams of high priority, ahead of the model's own kernels.
  bool high_priority_stream = false;
  std::optional<int> min_ctas;          ///< least number of thread blocks a collective takes, 1 to 64
  std::optional<int> max_ctas;          ///< most of them
  std::optional<int> cga_cluster_size;  ///< thread block clusters, 0 to 8 (Hopper and later)
  std::optional<std::string> net_name;  ///< network plug-in: "IB", "Socket", ...
};

/// How the ranks of one group talk to one another.
struct CommunicatorOptions {
  /// "gloo" (CPU tensors, any machines), "shm" (CPU tensors through shared memory, one machine),
  /// "hierarchical" (CPU tensors of several machines with equally many ranks, numbered machine by machine:
  /// shared memory within each, gloo between them), "mpi" (CPU tensors over Open MPI, for processes that
  /// mpirun started; CUDA tensors where Open MPI was built for them; builds with ACCELERATE_MPI only), "nccl"
  /// (CUDA variant only), or "auto": nccl for CUDA devices, else the first of shm, hierarchical and gloo that
  /// serves.
  std::string backend = "auto";
  /// The longest that a collective, and the start of the group, waits for the other ranks. HF's default for
  /// Gloo.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Device of this rank; CUDA collectives run on it. Tensors of a device for which there is no back end are
  /// copied to the CPU and back.
  at::Device device = at::kCPU;
  /// While waiting for ranks to arrive, who is present and who is missing is printed this often.
  std::chrono::milliseconds progress_interval = std::chrono::seconds(10);
  /// A collective that takes longer is told about on every rank that waits, with its number, the tensor, and
  /// the ranks that have not come and what they do instead; again after twice that time, and so on. It fails
  /// at `timeout`. 0: nothing is told before.
  std::chrono::milliseconds watchdog_notice = std::chrono::seconds(60);
  /// Before each collective all ranks compare which one it is and the tensor's dtype and shape; where they
  /// differ, every rank throws with the list instead of hanging. Costs one small exchange each time.
  bool debug = false;
  NcclOptions nccl = {};
};

/// The ranks of a job and the collectives between them. Every method that is marked collective must be called
/// by all ranks in the same order with tensors of the same shape and dtype; it returns when this rank's part
/// is done and its result is ready on this rank's current stream. Not thread-safe: one thread a rank.
///
/// All collectives throw CommError when a peer is gone or late by more than the timeout; the message names
/// the operation, its number, the tensor, and the ranks that did not come. Ranks that disagree (other shapes,
/// another order) are told apart only with CommunicatorOptions::debug; without it the back end may hang or
/// end the process.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "gloo", "shm", "hierarchical", "mpi", "nccl", or "none" for a group of one.
  virtual std::string backend_name() const = 0;

  /// Collective. Reduces `tensor` in place over all ranks. kMean wants a floating dtype.
  virtual void all_reduce(at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  /// Collective. Overwrites `tensor` with that of rank `root`.
  virtual void broadcast(at::Tensor& tensor, int root = 0) = 0;
  /// Collective. The ranks' tensors, equal in shape, joined along dimension 0 in rank order; 0-d tensors
  /// become 1-d.
  virtual at::Tensor all_gather(const at::Tensor& tensor) = 0;
  /// Collective. Reduces over all ranks and returns this rank's part of dimension 0, whose size must be a
  /// multiple of size().
  virtual at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  /// Collective. Rank r's `output` becomes inputs[r] of rank `root`; the other ranks give no inputs. All of
  /// one shape and dtype.
  virtual void scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int root = 0) = 0;
  /// Local. Sends `tensor` to rank `destination`, which calls receive() with one of the same shape and dtype;
  /// returns once `tensor` may change again. Messages between two ranks with one `tag` (0 or more) arrive in
  /// order.
  virtual void send(const at::Tensor& tensor, int destination, int tag = 0) = 0;
  /// Local. Overwrites `tensor` with what rank `source` sends.
  virtual void receive(at::Tensor& tensor, int source, int tag = 0) = 0;
  /// Collective. Returns once every rank has called it.
  virtual void barrier() = 0;

  /// Collective in debug mode, else nothing: all ranks must be at `what`. For engines that run collectives of
  /// their own.
  virtual void check_point(const std::string& what) = 0;

  /// Small values that ranks share beside the collectives; none for a group of one.
  virtual Store* store() = 0;
  virtual std::chrono::milliseconds timeout() const = 0;

  /// The group as c10d sees it, null for a group of one. For strategies that run c10d's own engines on it.
  virtual c10::intrusive_ptr<c10d::ProcessGroup> process_group() const = 0;

  /// Turns an exception that a foreign engine threw while it ran collectives of this group (`operation` says
  /// which) into a CommError that names the missing ranks; anything that is no communication failure is
  /// thrown on as it is. Call inside a catch block.
  [[noreturn]] virtual void rethrow(const std::string& operation) = 0;

  /// Collective. While the result lives, CPU tensors that this thread makes lie, as far as `bytes` reach,
  /// where the group reduces them in place. Null, on all ranks, where the back end has no such memory: then
  /// nothing changes.
  virtual std::unique_ptr<BucketMemory> bucket_memory(size_t bytes) {
    static_cast<void>(bytes);
    return nullptr;
  }
};

/// Collective over the job: meets the other ranks of `topology` and builds the group. A world of one needs no
/// network and no other rank.
/// `logger` outlives the result, which prints to it.
/// @throws CommError when ranks did not arrive within the timeout (naming them), ConfigError for a backend
/// that this build or device can't serve.
std::shared_ptr<Communicator> make_communicator(const Topology& topology, const CommunicatorOptions& options,
                                                Logger& logger);

/// Collective. As above over a store that the caller made.
std::shared_ptr<Communicator> make_communicator(Store store, const Topology& topology,
                                                const CommunicatorOptions& options, Logger& logger);

/// Collective. As above; `loopback` says that all ranks are on this
/// machine.
std::shared_ptr<Communicator> make_communicator(Store store, int rank, int size, bool loopback,
                                                const CommunicatorOptions& options, Logger& logger);

/// A store inside this process, for ranks that are threads.
Store make_in_memory_store();

}  // namespace accelerate
