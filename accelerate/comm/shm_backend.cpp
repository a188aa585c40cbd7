#include "accelerate/comm/shm_backend_internal.h"

#include <ATen/Functions.h>

#include "accelerate/comm/plain_tensors_internal.h"
#include "accelerate/comm/shm_bucket_memory.h"
#include "accelerate/comm/tensor_work_internal.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using c10d::OpType;

constexpr const char* kOver = "shared memory";

}  // namespace

ShmBackend::ShmBackend(std::unique_ptr<shm::Group> group, const BackendRequest& request)
    : Backend(request.rank, request.size),
      group_(std::move(group)),
      request_(request),
      timeout_(request.timeout) {
  group_->meet(timeout_);
}

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
}

shm::Group::Timeout ShmBackend::timeout(std::chrono::milliseconds wanted) const {
  return wanted.count() > 0 ? wanted : timeout_;  // c10d's -1 and 0 stand for the group's own
}

void ShmBackend::check(bool ok, const char* operation, const std::string& expected) const {
  if (!ok)
    throw ConfigError(
        {.what = concat(operation, " over shared memory"), .expected = expected, .rank = rank_});
}

ShmBackend::Work ShmBackend::done(OpType type, Tensors outputs) {
  ++sequence_;
  return TensorWork::done(rank_, type, std::move(outputs));
}

c10d::Backend& ShmBackend::gloo() {
  if (!gloo_) gloo_ = make_gloo_backend(request_);
  return *gloo_;
}

void ShmBackend::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op, std::chrono::milliseconds wanted) {
  check(is_dense_cpu(tensor), "all_reduce", "a dense CPU tensor");
  const Output output(as_numbers(tensor, op), /*read_too=*/true);
  group_->all_reduce(output.data(), static_cast<size_t>(output.tensor().numel()),
                     element_of(output.tensor(), kOver, rank_), reduction_of(op, kOver, rank_),
                     timeout(wanted));
  output.save();
}

ShmBackend::Work ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check(tensors.size() == 1, "all_reduce", "one tensor");
  if (tensors[0].layout() != at::kStrided) return allreduce_sparse(tensors, options);
  const std::lock_guard lock(mutex_);
  const Below below;
  all_reduce(tensors[0], options.reduceOp, options.timeout);
  return done(OpType::ALLREDUCE, tensors);
}

ShmBackend::Work ShmBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const std::lock_guard lock(mutex_);
  return gloo().allreduce(tensors, options);
}

ShmBackend::Work ShmBackend::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  const std::lock_guard lock(mutex_);
  const Below below;
  const bool one_type = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return is_dense_cpu(tensor) && tensor.scalar_type() == tensors[0].scalar_type();
  });
  if (tensors.size() == 1 || !one_type) {
    for (at::Tensor& tensor : tensors) all_reduce(tensor, options.reduceOp, options.timeout);
  } else if (!tensors.empty()) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
    at::Tensor joined = at::cat(flat);
    all_reduce(joined, options.reduceOp, options.timeout);
    int64_t at = 0;
    for (at::Tensor& tensor : tensors) {
      tensor.copy_(joined.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  }
  return done(OpType::ALLREDUCE_COALESCED, tensors);
}

ShmBackend::Work ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check(tensors.size() == 1 && is_dense_cpu(tensors[0]), "broadcast", "one dense CPU tensor");
  const std::lock_guard lock(mutex_);
  const Below below;
  const Output output(tensors[0], /*read_too=*/true);
  group_->broadcast(output.data(), output.bytes(), static_cast<int>(options.rootRank),
                    timeout(options.timeout));
  if (options.rootRank != rank_) output.save();
  return done(OpType::BROADCAST, tensors);
}

ShmBackend::Work ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check(tensors.size() == 1 && is_dense_cpu(tensors[0]), "reduce", "one dense CPU tensor");
  const std::lock_guard lock(mutex_);
  const Below below;
  const Output output(as_numbers(tensors[0], options.reduceOp), /*read_too=*/true);
  group_->reduce(output.data(), static_cast<size_t>(output.tensor().numel()),
                 element_of(output.tensor(), kOver, rank_), reduction_of(options.reduceOp, kOver, rank_),
                 static_cast<int>(options.rootRank), timeout(options.timeout));
  if (options.rootRank == rank_) output.save();
  return done(OpType::REDUCE, tensors);
}

void ShmBackend::all_gather(const Tensors& outputs, const at::Tensor& input,
                            std::chrono::milliseconds wanted) {
  check(static_cast<int>(outputs.size()) == size_ && all_like(outputs, input), "all_gather",
        concat(size_, " dense CPU outputs of the input's dtype and size"));
  const Input from(input);
  const std::vector<Output> to = outputs_of(outputs);
  group_->all_gather(from.data(), pointers(to), from.bytes(), timeout(wanted));
  save(to);
}

ShmBackend::Work ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  check(inputs.size() == 1 && outputs.size() == 1, "all_gather", "one input and one list of outputs");
  const std::lock_guard lock(mutex_);
  const Below below;
  all_gather(outputs[0], inputs[0], options.timeout);
  return done(OpType::ALLGATHER, outputs[0]);
}

ShmBackend::Work ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  check(output.numel() == input.numel() * size_ && is_dense_cpu(output), "all_gather",
        concat("a dense CPU output of ", size_, " times the input's size"));
  const std::lock_guard lock(mutex_);
  const Below below;
  const Output whole(output);
  all_gather(parts_of(whole.tensor(), size_), input, options.timeout);
  whole.save();
  return done(OpType::_ALLGATHER_BASE, {output});
}

ShmBackend::Work ShmBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  check(static_cast<int>(outputs.size()) == size_, "all_gather", "one list of outputs a rank");
  const std::lock_guard lock(mutex_);
  const Below below;
  Tensors all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (Tensors& list : outputs) {
      check(list.size() == inputs.size(), "all_gather", "as many outputs a rank as inputs");
      parts.push_back(list[i]);
      all.push_back(list[i]);
    }
    all_gather(parts, inputs[i], options.timeout);
  }
  return done(OpType::ALLGATHER_COALESCED, all);
}

ShmBackend::Work ShmBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  check(outputs.size() == inputs.size(), "all_gather", "as many outputs as inputs");
  for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], options);
  return done(OpType::COALESCED, outputs);
}

ShmBackend::Work ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  const bool root = options.rootRank == rank_;
  check(inputs.size() == 1 && is_dense_cpu(inputs[0]) && outputs.size() == (root ? 1 : 0), "gather",
        "one dense CPU input, and one list of outputs on the root");
  check(!root || (static_cast<int>(outputs[0].size()) == size_ && all_like(outputs[0], inputs[0])), "gather",
        concat(size_, " outputs of the input's dtype and size"));
  const std::lock_guard lock(mutex_);
  const Below below;
  const Input from(inputs[0]);
  const std::vector<Output> to = root ? outputs_of(outputs[0]) : std::vector<Output>();
  group_->gather(from.data(), pointers(to), from.bytes(), static_cast<int>(options.rootRank),
                 timeout(options.timeout));
  save(to);
  return done(OpType::GATHER, root ? outputs[0] : Tensors());
}

ShmBackend::Work ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  const bool root = options.rootRank == rank_;
  check(outputs.size() == 1 && is_dense_cpu(outputs[0]) && inputs.size() == (root ? 1 : 0), "scatter",
        "one dense CPU output, and one list of inputs on the root");
  check(!root || (static_cast<int>(inputs[0].size()) == size_ && all_like(inputs[0], outputs[0])), "scatter",
        concat(size_, " inputs of the output's dtype and size"));
  const std::lock_guard lock(mutex_);
  const Below below;
  const Output to(outputs[0]);
  const std::vector<Input> from = root ? inputs_of(inputs[0]) : std::vector<Input>();
  group_->scatter(to.data(), pointers(from), to.bytes(), static_cast<int>(options.rootRank),
                  timeout(options.timeout));
  to.save();
  return done(OpType::SCATTER, outputs);
}

void ShmBackend::reduce_scatter_one(at::Tensor& output, const Tensors& inputs, const c10d::ReduceOp& op,
                                    std::chrono::milliseconds wanted) {
  check(static_cast<int>(inputs.size()) == size_ && all_like(inputs, output), "reduce_scatter",
        concat(size_, " dense CPU inputs of the output's dtype and size"));
  const Output to(as_numbers(output, op));
  Tensors numbers;
  for (const at::Tensor& input : inputs) numbers.push_back(as_numbers(input, op));
  const std::vector<Input> from = inputs_of(numbers);
  group_->reduce_scatter(to.data(), pointers(from), static_cast<size_t>(to.tensor().numel()),
                         element_of(to.tensor(), kOver, rank_), reduction_of(op, kOver, rank_),
                         timeout(wanted));
  to.save();
}

ShmBackend::Work ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  check(outputs.size() == 1 && inputs.size() == 1, "reduce_scatter", "one output and one list of inputs");
  const std::lock_guard lock(mutex_);
  const Below below;
  reduce_scatter_one(outputs[0], inputs[0], options.reduceOp, options.timeout);
  return done(OpType::REDUCE_SCATTER, outputs);
}

ShmBackend::Work ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  check(input.numel() == output.numel() * size_ && is_dense_cpu(input), "reduce_scatter",
        concat("a dense CPU input of ", size_, " times the output's size"));
  const std::lock_guard lock(mutex_);
  const Below below;
  const Input whole(input);
  reduce_scatter_one(output, parts_of(whole.tensor(), size_), options.reduceOp, options.timeout);
  return done(OpType::_REDUCE_SCATTER_BASE, {output});
}

ShmBackend::Work ShmBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  check(outputs.size() == inputs.size(), "reduce_scatter", "as many outputs as inputs");
  for (size_t i = 0; i < inputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs[i], options);
  return done(OpType::COALESCED, outputs);
}

ShmBackend::Work ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_sizes,
                                           std::vector<int64_t>& input_sizes,
                                           const c10d::AllToAllOptions& options) {
  check(is_dense_cpu(input) && is_dense_cpu(output) && input.scalar_type() == output.scalar_type(),
        "all_to_all", "dense CPU tensors of one dtype");
  const std::lock_guard lock(mutex_);
  const Below below;
  const Input from(input);
  const Output to(output);
  const auto bytes_of = [&](const std::vector<int64_t>& sizes, const at::Tensor& tensor) {
    std::vector<uint64_t> out;
    for (const int64_t count :
         elements_by_rank(sizes, tensor, size_,
                          [&](bool ok, const std::string&expected) { check(ok, "all_to_all", expected); })) {
      out.push_back(static_cast<uint64_t>(count) * tensor.element_size());
    }
    return out;
  };
  const std::vector<uint64_t> from_bytes = bytes_of(input_sizes, from.tensor());
  const std::vector<uint64_t> to_bytes = bytes_of(output_sizes, to.tensor());
  std::vector<const void*> sources;
  std::vector<void*> targets;
  const auto* source = static_cast<const std::byte*>(from.data());
  auto* target = static_cast<std::byte*>(to.data());
  for (size_t peer = 0; peer < from_bytes.size(); ++peer) {
    sources.push_back(source);
    targets.push_back(target);
    source += from_bytes[peer];
    target += to_bytes[peer];
  }
  group_->all_to_all(sources, from_bytes, targets, to_bytes, timeout(options.timeout));
  to.save();
  return done(OpType::ALLTOALL_BASE, {output});
}

ShmBackend::Work ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  const auto fits = [&](const Tensors& tensors) {
    return static_cast<int>(tensors.size()) == size_ &&
           std::all_of(tensors.begin(), tensors.end(), is_dense_cpu);
  };
  check(fits(inputs) && fits(outputs), "all_to_all", concat(size_, " dense CPU inputs and outputs"));
  const std::lock_guard lock(mutex_);
  const Below below;
  const std::vector<Input> from = inputs_of(inputs);
  const std::vector<Output> to = outputs_of(outputs);
  std::vector<uint64_t> from_bytes;
  std::vector<uint64_t> to_bytes;
  for (const Input& input : from) from_bytes.push_back(input.bytes());
  for (const Output& output : to) to_bytes.push_back(output.bytes());
  group_->all_to_all(pointers(from), from_bytes, pointers(to), to_bytes, timeout(options.timeout));
  save(to);
  return done(OpType::ALLTOALL, outputs);
}

shm::Mailbox& ShmBackend::mailbox() {
  if (!mailbox_) mailbox_ = std::make_unique<shm::Mailbox>(*group_);
  return *mailbox_;
}

ShmBackend::Work ShmBackend::send(Tensors& tensors, int destination, int tag) {
  check(tensors.size() == 1 && is_dense_cpu(tensors[0]) && destination >= 0 && destination < size_ &&
            destination != rank_,
        "send", "one dense CPU tensor and the number of another rank");
  const std::lock_guard lock(mutex_);
  const Below below;
  auto work = c10::make_intrusive<TensorWork>(rank_, OpType::SEND, Tensors());
  const auto from = std::make_shared<Input>(tensors[0]);
  mailbox().send(from->data(), from->bytes(), destination, tag, timeout_,
                 [work, from](const std::exception_ptr& error, int) { work->complete(error); });
  return work;
}

ShmBackend::Work ShmBackend::receive(Tensors& tensors, int source, int tag) {
  check(tensors.size() == 1 && is_dense_cpu(tensors[0]) && source >= -1 && source < size_ && source != rank_,
        "recv", "one dense CPU tensor and the number of another rank");
  const std::lock_guard lock(mutex_);
  const Below below;
  auto work =
      c10::make_intrusive<TensorWork>(rank_, source < 0 ? OpType::RECVANYSOURCE : OpType::RECV, tensors);
  const auto to = std::make_shared<Output>(tensors[0]);
  mailbox().receive(to->data(), to->bytes(), source < 0 ? shm::Mailbox::kAnySource : source, tag, timeout_,
                    [work, to](const std::exception_ptr& error, int from) {
                      const Below below_here;
                      if (!error) to->save();
                      work->complete(error, from);
                    });
  return work;
}

ShmBackend::Work ShmBackend::recv(Tensors& tensors, int source, int tag) {
  check(source >= 0, "recv", "the number of another rank");
  return receive(tensors, source, tag);
}

ShmBackend::Work ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, shm::Mailbox::kAnySource, tag);
}

ShmBackend::Work ShmBackend::barrier(const c10d::BarrierOptions& options) {
  const std::lock_guard lock(mutex_);
  group_->barrier(timeout(options.timeout));
  return done(OpType::BARRIER, {});
}

void ShmBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  barrier(options);  // every barrier here names who is missing
}

std::unique_ptr<BucketMemory> ShmBackend::make_bucket_memory(size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::string problem;
  auto arena = group_->make_arena(bytes, &problem, timeout_);
  return arena ? use_arena(std::move(arena)) : nullptr;
}

}  // namespace accelerate::detail
