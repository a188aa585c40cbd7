#include "accelerate/comm/hierarchical_backend_internal.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "accelerate/comm/plain_tensors_internal.h"
#include "accelerate/comm/tensor_work_internal.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using c10d::OpType;

// Smaller tensors travel whole between the first ranks of the machines: one message instead of several.
constexpr size_t kPartsFrom = 64 * 1024;

template <class Options>
Options with_timeout(std::chrono::milliseconds timeout) {
  Options options;
  options.timeout = timeout;
  return options;
}

c10d::AllreduceOptions reducing(const c10d::ReduceOp& op, std::chrono::milliseconds timeout) {
  auto options = with_timeout<c10d::AllreduceOptions>(timeout);
  options.reduceOp = op;
  return options;
}

bool is_average(const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::AVG;
}

// Reductions of parts are reductions of the whole, but for the average, which divides at the end.
c10d::ReduceOp partial(const c10d::ReduceOp& op) {
  return is_average(op) ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

// Gloo takes bools for bytes, whose sum may be 2.
c10d::ReduceOp for_gloo(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kBool) return op;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::BOR:
      return c10d::ReduceOp(c10d::ReduceOp::MAX);
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::BAND:
      return c10d::ReduceOp(c10d::ReduceOp::MIN);
    default:
      return op;
  }
}

// Both back ends must take it: a rank that is refused alone would leave the others waiting.
bool can_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return op.op_ <= c10d::ReduceOp::MAX;
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return op.op_ != c10d::ReduceOp::AVG && op.op_ <= c10d::ReduceOp::BXOR;
    default:
      return false;
  }
}

constexpr const char* kReducible =
    "float, double, half or bfloat16 by sum, average, product, min or max; or int8, uint8, int32, int64 or "
    "bool, "
    "also bitwise, but no averages";

void check(bool ok, const char* operation, const std::string& expected, int rank) {
  if (!ok)
    throw ConfigError(
        {.what = concat(operation, " over several machines"), .expected = expected, .rank = rank});
}

}  // namespace

HierarchicalBackend::HierarchicalBackend(const MachineLayout& layout, Inner local, Inner across, Inner all)
    : Backend(all->getRank(), all->getSize()),
      layout_(layout),
      local_(std::move(local)),
      across_(std::move(across)),
      all_(std::move(all)),
      thread_([this] { run(); }) {}

HierarchicalBackend::~HierarchicalBackend() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HierarchicalBackend::setTimeout(std::chrono::milliseconds timeout) {
  for (const Inner& inner : {local_, across_, all_}) inner->setTimeout(timeout);
}

void HierarchicalBackend::run() {
  // Collectives leave no trace in autograd.
  const at::AutoDispatchBelowADInplaceOrView below;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> action = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    action();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

HierarchicalBackend::Work HierarchicalBackend::begin(OpType type, Tensors outputs,
                                                     std::function<void()> action) {
  ++sequence_;
  auto work = c10::make_intrusive<TensorWork>(rank_, type, std::move(outputs));
  const std::lock_guard lock(mutex_);
  queue_.emplace_back([work, action = std::move(action)] {
    std::exception_ptr error;
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
    work->complete(error);
  });
  changed_.notify_all();
  return work;
}

void HierarchicalBackend::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

void HierarchicalBackend::all_reduce(at::Tensor tensor, const c10d::ReduceOp& op,
                                     std::chrono::milliseconds timeout) {
  const Output whole(tensor, /*read_too=*/true);
  const at::Tensor flat = whole.tensor().view({-1});
  const auto reduce_across = [&](at::Tensor part) {
    Tensors tensors = {std::move(part)};
    across_->allreduce(tensors, reducing(for_gloo(partial(op), flat), timeout))->wait();
  };
  const auto share = [&](at::Tensor part, int root) {
    Tensors tensors = {std::move(part)};
    auto from = with_timeout<c10d::BroadcastOptions>(timeout);
    from.rootRank = root;
    local_->broadcast(tensors, from)->wait();
  };
  Tensors all = {flat};
  local_->allreduce(all, reducing(partial(op), timeout))->wait();
  const int64_t each = flat.numel() / layout_.local_size;
  if (flat.nbytes() < kPartsFrom || each == 0) {
    if (layout_.local_rank == 0) reduce_across(flat);
    share(flat, 0);
  } else {
    // The last rank's part has what does not divide.
    const int64_t rest = flat.numel() - each * layout_.local_size;
    const int last = layout_.local_size - 1;
    const int64_t mine = layout_.local_rank * each;
    reduce_across(flat.narrow(0, mine, each + (layout_.local_rank == last ? rest : 0)));
    std::vector<Tensors> outputs = {
        parts_of(flat.narrow(0, 0, each * layout_.local_size), layout_.local_size)};
    Tensors inputs = {flat.narrow(0, mine, each)};
    local_->allgather(outputs, inputs, with_timeout<c10d::AllgatherOptions>(timeout))->wait();
    if (rest > 0) share(flat.narrow(0, each * layout_.local_size, rest), last);
  }
  if (is_average(op)) flat.div_(size_);
  whole.save();
}

HierarchicalBackend::Work HierarchicalBackend::allreduce(Tensors& tensors,
                                                         const c10d::AllreduceOptions& options) {
  check(tensors.size() == 1, "all_reduce", "one tensor", rank_);
  if (tensors[0].layout() != at::kStrided) return allreduce_sparse(tensors, options);
  check(can_reduce(tensors[0], options.reduceOp), "all_reduce", kReducible, rank_);
  return begin(OpType::ALLREDUCE, tensors, [this, tensor = tensors[0], options] {
    all_reduce(tensor, options.reduceOp, options.timeout);
  });
}

HierarchicalBackend::Work HierarchicalBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  for (const at::Tensor& tensor : tensors) {
    check(can_reduce(tensor, options.reduceOp), "all_reduce", kReducible, rank_);
  }
  return begin(OpType::ALLREDUCE_COALESCED, tensors, [this, tensors, options] {
    for (const at::Tensor& tensor : tensors) all_reduce(tensor, options.reduceOp, options.timeout);
  });
}

HierarchicalBackend::Work HierarchicalBackend::broadcast(Tensors& tensors,
                                                         const c10d::BroadcastOptions& options) {
  check(tensors.size() == 1, "broadcast", "one tensor", rank_);
  return begin(OpType::BROADCAST, tensors, [this, tensors, options]() mutable {
    const auto root = static_cast<int>(options.rootRank);
    const int root_local = root % layout_.local_size;
    auto step = options;
    if (layout_.local_rank == root_local) {
      step.rootRank = root / layout_.local_size;
      const bool plain = tensors[0].is_contiguous();
      Tensors whole = {plain ? tensors[0] : tensors[0].contiguous()};
      across_->broadcast(whole, step)->wait();
      if (!plain) tensors[0].copy_(whole[0]);
    }
    step.rootRank = root_local;
    local_->broadcast(tensors, step)->wait();
  });
}

// First between machines, then within each.
void HierarchicalBackend::all_gather(const Tensors& outputs, const at::Tensor& input,
                                     std::chrono::milliseconds timeout) {
  const auto options = with_timeout<c10d::AllgatherOptions>(timeout);
  const at::Tensor mine = input.contiguous();
  Tensors inputs = {mine};
  std::vector<Tensors> counterparts(1);
  for (int machine = 0; machine < layout_.machines; ++machine)
    counterparts[0].push_back(at::empty_like(mine));
  across_->allgather(counterparts, inputs, options)->wait();
  for (int machine = 0; machine < layout_.machines; ++machine) {
    const auto first = outputs.begin() + machine * layout_.local_size;
    std::vector<Tensors> of_machine = {Tensors(first, first + layout_.local_size)};
    Tensors from = {counterparts[0][static_cast<size_t>(machine)]};
    local_->allgather(of_machine, from, options)->wait();
  }
}

HierarchicalBackend::Work HierarchicalBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  check(inputs.size() == 1 && outputs.size() == 1 && static_cast<int>(outputs[0].size()) == size_,
        "all_gather", concat("one input and ", size_, " outputs"), rank_);
  return begin(OpType::ALLGATHER, outputs[0], [this, to = outputs[0], input = inputs[0], options] {
    all_gather(to, input, options.timeout);
  });
}

HierarchicalBackend::Work HierarchicalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::AllgatherOptions& options) {
  check(output.numel() == input.numel() * size_, "all_gather",
        concat("an output of ", size_, " times the input's size"), rank_);
  return begin(OpType::_ALLGATHER_BASE, {output}, [this, output, input, options] {
    const at::Tensor whole = output.contiguous();
    all_gather(parts_of(whole, size_), input.reshape({-1}), options.timeout);
    if (!whole.is_same(output)) output.copy_(whole);
  });
}

// First within each machine, for the ranks of every machine; then between counterparts.
void HierarchicalBackend::reduce_scatter_one(at::Tensor output, const Tensors& inputs,
                                             const c10d::ReduceOp& op, std::chrono::milliseconds timeout) {
  auto options = with_timeout<c10d::ReduceScatterOptions>(timeout);
  options.reduceOp = partial(op);
  at::Tensor mine = at::empty({layout_.machines, output.numel()}, output.options());
  for (int machine = 0; machine < layout_.machines; ++machine) {
    const auto first = inputs.begin() + machine * layout_.local_size;
    std::vector<Tensors> for_machine = {Tensors(first, first + layout_.local_size)};
    Tensors to = {mine[machine].view(output.sizes())};
    local_->reduce_scatter(to, for_machine, options)->wait();
  }
  // Gloo has no reduce-scatter for all of these; the sums of all are as many bytes as there are machines.
  Tensors all = {mine};
  across_->allreduce(all, reducing(for_gloo(partial(op), mine), timeout))->wait();
  if (is_average(op)) mine.div_(size_);
  output.copy_(mine[layout_.machine].view(output.sizes()));
}

HierarchicalBackend::Work HierarchicalBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  check(input.numel() == output.numel() * size_, "reduce_scatter",
        concat("an input of ", size_, " times the output's size"), rank_);
  check(can_reduce(output, options.reduceOp), "reduce_scatter", kReducible, rank_);
  return begin(OpType::_REDUCE_SCATTER_BASE, {output}, [this, output, input, options] {
    Tensors parts = parts_of(input.contiguous(), size_);
    for (at::Tensor& part : parts) part = part.view(output.sizes());
    reduce_scatter_one(output, parts, options.reduceOp, options.timeout);
  });
}

HierarchicalBackend::Work HierarchicalBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                              const c10d::ReduceScatterOptions& options) {
  check(outputs.size() == 1 && inputs.size() == 1 && static_cast<int>(inputs[0].size()) == size_,
        "reduce_scatter", concat("one output and ", size_, " inputs"), rank_);
  check(can_reduce(outputs[0], options.reduceOp), "reduce_scatter", kReducible, rank_);
  return begin(OpType::REDUCE_SCATTER, outputs, [this, output = outputs[0], from = inputs[0], options] {
    reduce_scatter_one(output, from, options.reduceOp, options.timeout);
  });
}

HierarchicalBackend::Work HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  return begin(OpType::BARRIER, {}, [this, options] {
    local_->barrier(options)->wait();
    if (layout_.local_rank == 0) across_->barrier(options)->wait();
    local_->barrier(options)->wait();
  });
}

HierarchicalBackend::Work HierarchicalBackend::allreduce_sparse(Tensors& tensors,
                                                                const c10d::AllreduceOptions& options) {
  return all_->allreduce(tensors, options);
}
HierarchicalBackend::Work HierarchicalBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return all_->reduce(tensors, options);
}
HierarchicalBackend::Work HierarchicalBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::GatherOptions& options) {
  return all_->gather(outputs, inputs, options);
}
HierarchicalBackend::Work HierarchicalBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                       const c10d::ScatterOptions& options) {
  return all_->scatter(outputs, inputs, options);
}
HierarchicalBackend::Work HierarchicalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                             std::vector<int64_t>& output_sizes,
                                                             std::vector<int64_t>& input_sizes,
                                                             const c10d::AllToAllOptions& options) {
  return all_->alltoall_base(output, input, output_sizes, input_sizes, options);
}
HierarchicalBackend::Work HierarchicalBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllToAllOptions& options) {
  // Gloo has no form for lists. In the caller, as all that runs in the group of all ranks.
  const auto joined = [](const Tensors& tensors, std::vector<int64_t>& sizes) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(tensor.reshape({-1}));
      sizes.push_back(tensor.numel());
    }
    return at::cat(flat);
  };
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<int64_t> sent;
  std::vector<int64_t> taken;
  at::Tensor from = joined(inputs, sent);
  at::Tensor to = joined(outputs, taken);
  const std::vector<int64_t> sizes = taken;
  all_->alltoall_base(to, from, taken, sent, options)->wait();
  const Tensors parts = to.split_with_sizes(sizes);
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(parts[i].view(outputs[i].sizes()));
  return TensorWork::done(rank_, OpType::ALLTOALL, outputs);
}
HierarchicalBackend::Work HierarchicalBackend::send(Tensors& tensors, int destination, int tag) {
  return all_->send(tensors, destination, tag);
}
HierarchicalBackend::Work HierarchicalBackend::recv(Tensors& tensors, int source, int tag) {
  return all_->recv(tensors, source, tag);
}
HierarchicalBackend::Work HierarchicalBackend::recvAnysource(Tensors& tensors, int tag) {
  return all_->recvAnysource(tensors, tag);
}
void HierarchicalBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  all_->monitoredBarrier(options, wait_all_ranks);
}

std::unique_ptr<BucketMemory> HierarchicalBackend::make_bucket_memory(size_t bytes) {
  drain();  // one operation at a time in the shared memory
  auto* source = dynamic_cast<BucketMemorySource*>(local_.get());
  return source == nullptr ? nullptr : source->make_bucket_memory(bytes);
}

}  // namespace accelerate::detail
