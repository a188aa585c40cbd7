#include "accelerate/comm/mpi_backend_internal.h"

#ifdef ACCELERATE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include "accelerate/comm/tensor_work_internal.h"

namespace accelerate::detail {
namespace {

using c10d::OpType;

constexpr const char* kOver = "MPI";

std::string described(const char* operation, const at::Tensor& tensor) {
  return concat(operation, " of ", tensor.numel(), " ", c10::toString(tensor.scalar_type()));
}

size_t count_of(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel());
}

// MPI knows no streams: what it reads must be there, and what was written after it must have arrived.
void settle(const std::vector<at::Tensor>& tensors) {
#ifdef ACCELERATE_WITH_CUDA
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cuda()) c10::cuda::getCurrentCUDAStream(tensor.get_device()).synchronize();
  }
#else
  static_cast<void>(tensors);
#endif
}

// MPI forbids that what is sent and what is received overlap; engines that shard do just that.
at::Tensor apart(const at::Tensor& input, const at::Tensor& output) {
  return input.storage().is_alias_of(output.storage()) ? input.clone() : input;
}

}  // namespace

MpiBackend::MpiBackend(std::unique_ptr<mpi::Group> group, const BackendRequest& request)
    : Backend(request.rank, request.size),
      group_(std::move(group)),
      request_(request),
      timeout_ms_(request.timeout.count()),
      cuda_aware_(mpi::is_cuda_aware()) {}

std::chrono::milliseconds MpiBackend::timeout(std::chrono::milliseconds wanted) const {
  // c10d's -1 and 0 stand for the group's own.
  return wanted.count() > 0 ? wanted : std::chrono::milliseconds(timeout_ms_);
}

void MpiBackend::check(bool ok, const char* operation, const std::string& expected) const {
  if (!ok) throw ConfigError({.what = concat(operation, " over MPI"), .expected = expected, .rank = rank_});
}

bool MpiBackend::is_usable(const at::Tensor& tensor) const {
  if (tensor.is_cuda() && !cuda_aware_) {
    throw ConfigError({.what = "a CUDA tensor over MPI",
                       .expected = "CPU tensors, since this Open MPI was built without CUDA",
                       .hint = "Take the back end 'nccl', or an Open MPI that was configured --with-cuda.",
                       .rank = rank_});
  }
  return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda());
}

bool MpiBackend::all_usable(const Tensors& tensors, const at::Tensor& model, bool same_numel) const {
  return is_usable(model) && std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           return is_usable(tensor) && tensor.scalar_type() == model.scalar_type() &&
                  (!same_numel || tensor.numel() == model.numel());
         });
}

shm::Reduction MpiBackend::reduction(const c10d::ReduceOp& op, shm::Element element) const {
  const shm::Reduction wanted = reduction_of(op, kOver, rank_);
  if (!shm::can_reduce(element, wanted)) {
    throw ConfigError({.what = "a reduction over MPI",
                       .expected = "averages of floating types, bitwise reductions of integers and bools",
                       .got = concat(shm::name(wanted), " of ", shm::name(element)),
                       .rank = rank_});
  }
  return wanted == shm::Reduction::kAverage ? shm::Reduction::kSum : wanted;
}

MpiBackend::Work MpiBackend::run(OpType type, std::string name, Tensors outputs,
                                 std::chrono::milliseconds wanted, Start start, Finish finish) {
  settle(outputs);
  ++sequence_;
  auto work = c10::make_intrusive<TensorWork>(rank_, type, std::move(outputs));
  group_->run(std::move(name), timeout(wanted), std::move(start),
              [work, finish = std::move(finish)](std::exception_ptr error, int) {
                try {
                  const Below below;
                  if (!error) finish();
                  settle(work->result());
                } catch (...) {
                  error = std::current_exception();
                }
                work->complete(error);
              });
  return work;
}

MpiBackend::Work MpiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check(tensors.size() == 1, "all_reduce", "one tensor");
  if (tensors[0].layout() != at::kStrided) return allreduce_sparse(tensors, options);
  c10d::AllreduceCoalescedOptions coalesced;
  coalesced.reduceOp = options.reduceOp;
  coalesced.timeout = options.timeout;
  return allreduce_coalesced(tensors, coalesced);
}

MpiBackend::Work MpiBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return gloo().allreduce(tensors, options);
}

MpiBackend::Work MpiBackend::allreduce_coalesced(Tensors& tensors,
                                                 const c10d::AllreduceCoalescedOptions& options) {
  struct Item {
    Output output;
    shm::Element element;
    shm::Reduction reduction;
  };
  const Below below;
  std::vector<Item> items;
  for (const at::Tensor& tensor : tensors) {
    check(is_usable(tensor), "all_reduce", "a dense CPU tensor");
    const at::Tensor numbers = as_numbers(tensor, options.reduceOp);
    const shm::Element element = element_of(numbers, kOver, rank_);
    items.push_back({Output(numbers, /*read_too=*/true), element, reduction(options.reduceOp, element)});
  }
  const int64_t divisor = options.reduceOp.op_ == c10d::ReduceOp::AVG ? size_ : 1;
  std::string name = tensors.size() == 1 ? described("all_reduce", tensors[0])
                                         : concat("all_reduce of ", tensors.size(), " tensors");
  return run(
      tensors.size() == 1 ? OpType::ALLREDUCE : OpType::ALLREDUCE_COALESCED, std::move(name), tensors,
      options.timeout,
      [items](mpi::Calls& calls) {
        for (const Item& item : items) {
          calls.all_reduce(item.output.data(), count_of(item.output.tensor()), item.element, item.reduction);
        }
      },
      [items, divisor] {
        for (const Item& item : items) {
          if (divisor > 1) item.output.tensor().div_(divisor);
          item.output.save();
        }
      });
}

MpiBackend::Work MpiBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check(tensors.size() == 1 && is_usable(tensors[0]), "broadcast", "one dense CPU tensor");
  const Below below;
  const Output output(tensors[0], /*read_too=*/true);
  const auto root = static_cast<int>(options.rootRank);
  return run(
      OpType::BROADCAST, described("broadcast", tensors[0]), tensors, options.timeout,
      [output, root](mpi::Calls& calls) { calls.broadcast(output.data(), output.bytes(), root); },
      [output, save = root != rank_] {
        if (save) output.save();
      });
}

MpiBackend::Work MpiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check(tensors.size() == 1 && is_usable(tensors[0]), "reduce", "one dense CPU tensor");
  const Below below;
  const at::Tensor numbers = as_numbers(tensors[0], options.reduceOp);
  const Input from(numbers);
  const shm::Element element = element_of(numbers, kOver, rank_);
  const shm::Reduction how = reduction(options.reduceOp, element);
  const auto root = static_cast<int>(options.rootRank);
  const at::Tensor to = root == rank_ ? plain_like(numbers) : at::Tensor();
  const int64_t divisor = options.reduceOp.op_ == c10d::ReduceOp::AVG ? size_ : 1;
  return run(
      OpType::REDUCE, described("reduce", tensors[0]), tensors, options.timeout,
      [=](mpi::Calls& calls) {
        calls.reduce(from.data(), to.defined() ? to.mutable_data_ptr() : nullptr, count_of(from.tensor()),
                     element, how, root);
      },
      [numbers, to, divisor] {
        if (!to.defined()) return;
        if (divisor > 1) to.div_(divisor);
        numbers.copy_(to);
      });
}

MpiBackend::Work MpiBackend::exchange(OpType type, const char* name, Tensors outputs, std::vector<Part> from,
                                      std::vector<Part> to, std::chrono::milliseconds wanted, Finish finish) {
  for (const Part& part : from) settle({part.tensor});
  return run(
      type, name, std::move(outputs), wanted,
      [from = std::move(from), to = std::move(to)](mpi::Calls& calls) {
        for (const Part& part : to) {
          calls.receive_part(part.tensor.mutable_data_ptr(), part.tensor.nbytes(), part.peer);
        }
        for (const Part& part : from) {
          calls.send_part(part.tensor.const_data_ptr(), part.tensor.nbytes(), part.peer);
        }
      },
      std::move(finish));
}

MpiBackend::Work MpiBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  check(inputs.size() == 1 && outputs.size() == 1, "all_gather", "one input and one list of outputs");
  const Tensors& into = outputs[0];
  const at::Tensor& input = inputs[0];
  check(static_cast<int>(into.size()) == size_ && all_usable(into, input, /*same_numel=*/false) &&
            into[static_cast<size_t>(rank_)].numel() == input.numel(),
        "all_gather", concat(size_, " dense CPU outputs of the input's dtype, this rank's of its size"));
  const Below below;
  const Input from(input);
  if (all_usable(into, input, /*same_numel=*/true)) {
    const at::Tensor joined = at::empty({size_, input.numel()}, input.options());
    return run(
        OpType::ALLGATHER, described("all_gather", input), into, options.timeout,
        [from, joined](mpi::Calls& calls) {
          calls.all_gather(from.data(), joined.mutable_data_ptr(), from.bytes());
        },
        [joined, into] {
          for (size_t i = 0; i < into.size(); ++i)
            into[i].copy_(joined[static_cast<int64_t>(i)].view(into[i].sizes()));
        });
  }
  const std::vector<Output> to = outputs_of(into);
  std::vector<Part> sent;
  std::vector<Part> taken;
  for (int peer = 0; peer < size_; ++peer) {
    sent.push_back({peer, from.tensor()});
    taken.push_back({peer, to[static_cast<size_t>(peer)].tensor()});
  }
  return exchange(OpType::ALLGATHER, "all_gather", into, std::move(sent), std::move(taken), options.timeout,
                  [to] { save(to); });
}

MpiBackend::Work MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  check(all_usable({output}, input, /*same_numel=*/false) && output.numel() == input.numel() * size_,
        "all_gather", concat("a dense CPU output of ", size_, " times the input's size"));
  const Below below;
  const Input from(apart(input, output));
  const Output to(output);
  return run(
      OpType::_ALLGATHER_BASE, described("all_gather", input), {output}, options.timeout,
      [from, to](mpi::Calls& calls) { calls.all_gather(from.data(), to.data(), from.bytes()); },
      [to] { to.save(); });
}

MpiBackend::Work MpiBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  check(static_cast<int>(outputs.size()) == size_, "all_gather", "one list of outputs a rank");
  const Below below;
  std::vector<Output> to;
  std::vector<Part> sent;
  std::vector<Part> taken;
  Tensors all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input from(inputs[i]);
    for (int peer = 0; peer < size_; ++peer) {
      Tensors& list = outputs[static_cast<size_t>(peer)];
      check(list.size() == inputs.size() && all_usable({list[i]}, inputs[i], /*same_numel=*/true),
            "all_gather", "as many outputs a rank as inputs, of their dtypes and sizes");
      sent.push_back({peer, from.tensor()});
      to.emplace_back(list[i]);
      taken.push_back({peer, to.back().tensor()});
      all.push_back(list[i]);
    }
  }
  return exchange(OpType::ALLGATHER_COALESCED, "all_gather", all, std::move(sent), std::move(taken),
                  options.timeout, [to] { save(to); });
}

MpiBackend::Work MpiBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::AllgatherOptions& options) {
  check(outputs.size() == inputs.size(), "all_gather", "as many outputs as inputs");
  const Below below;
  std::vector<Input> from;
  std::vector<Output> to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(all_usable({outputs[i]}, inputs[i], /*same_numel=*/false) &&
              outputs[i].numel() == inputs[i].numel() * size_,
          "all_gather", concat("dense CPU outputs of ", size_, " times the inputs' sizes"));
    from.emplace_back(inputs[i]);
    to.emplace_back(outputs[i]);
  }
  return run(
      OpType::COALESCED, concat("all_gather of ", inputs.size(), " tensors"), outputs, options.timeout,
      [from, to](mpi::Calls& calls) {
        for (size_t i = 0; i < from.size(); ++i)
          calls.all_gather(from[i].data(), to[i].data(), from[i].bytes());
      },
      [to] { save(to); });
}

MpiBackend::Work MpiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::GatherOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  const bool here = root == rank_;
  check(inputs.size() == 1 && is_usable(inputs[0]) && outputs.size() == (here ? 1 : 0), "gather",
        "one dense CPU input, and one list of outputs on the root");
  check(!here || (static_cast<int>(outputs[0].size()) == size_ && all_usable(outputs[0], inputs[0], true)),
        "gather", concat(size_, " outputs of the input's dtype and size"));
  const Below below;
  const Tensors into = here ? outputs[0] : Tensors();
  const std::vector<Output> to = outputs_of(into);
  std::vector<Part> taken;
  for (size_t peer = 0; peer < to.size(); ++peer) {
    taken.push_back({static_cast<int>(peer), to[peer].tensor()});
  }
  return exchange(OpType::GATHER, "gather", into, {{root, Input(inputs[0]).tensor()}}, std::move(taken),
                  options.timeout, [to] { save(to); });
}

MpiBackend::Work MpiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const c10d::ScatterOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  const bool here = root == rank_;
  check(outputs.size() == 1 && is_usable(outputs[0]) && inputs.size() == (here ? 1 : 0), "scatter",
        "one dense CPU output, and one list of inputs on the root");
  check(!here || (static_cast<int>(inputs[0].size()) == size_ && all_usable(inputs[0], outputs[0], true)),
        "scatter", concat(size_, " inputs of the output's dtype and size"));
  const Below below;
  const Output to(outputs[0]);
  std::vector<Part> sent;
  for (int peer = 0; here && peer < size_; ++peer) {
    sent.push_back({peer, Input(inputs[0][static_cast<size_t>(peer)]).tensor()});
  }
  return exchange(OpType::SCATTER, "scatter", outputs, std::move(sent), {{root, to.tensor()}},
                  options.timeout, [to] { to.save(); });
}

MpiBackend::Work MpiBackend::reduce_scatter_joined(OpType type, const at::Tensor& output,
                                                   const at::Tensor& joined,
                                                   const c10d::ReduceScatterOptions& options) {
  const Input from(as_numbers(joined, options.reduceOp));
  const Output to(as_numbers(output, options.reduceOp));
  const shm::Element element = element_of(to.tensor(), kOver, rank_);
  const shm::Reduction how = reduction(options.reduceOp, element);
  const int64_t divisor = options.reduceOp.op_ == c10d::ReduceOp::AVG ? size_ : 1;
  return run(
      type, described("reduce_scatter", output), {output}, options.timeout,
      [=](mpi::Calls& calls) {
        calls.reduce_scatter(from.data(), to.data(), count_of(to.tensor()), element, how);
      },
      [to, divisor] {
        if (divisor > 1) to.tensor().div_(divisor);
        to.save();
      });
}

MpiBackend::Work MpiBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ReduceScatterOptions& options) {
  check(outputs.size() == 1 && inputs.size() == 1, "reduce_scatter", "one output and one list of inputs");
  check(static_cast<int>(inputs[0].size()) == size_ && all_usable(inputs[0], outputs[0], true),
        "reduce_scatter", concat(size_, " dense CPU inputs of the output's dtype and size"));
  const Below below;
  Tensors flat;
  for (const at::Tensor& input : inputs[0]) flat.push_back(input.reshape({-1}));
  return reduce_scatter_joined(OpType::REDUCE_SCATTER, outputs[0], at::stack(flat), options);
}

MpiBackend::Work MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  check(all_usable({output}, input, false) && input.numel() == output.numel() * size_, "reduce_scatter",
        concat("a dense CPU input of ", size_, " times the output's size"));
  const Below below;
  return reduce_scatter_joined(OpType::_REDUCE_SCATTER_BASE, output, apart(input, output), options);
}

MpiBackend::Work MpiBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  check(!outputs.empty() && outputs.size() == inputs.size(), "reduce_scatter", "as many outputs as inputs");
  std::vector<Work> parts;
  for (size_t i = 0; i < inputs.size(); ++i)
    parts.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  // Operations of a group are begun in order but may end in any; this one ends when all have.
  for (size_t i = 0; i + 1 < parts.size(); ++i) parts[i]->wait();
  return parts.back();
}

MpiBackend::Work MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                           std::vector<int64_t>& output_sizes,
                                           std::vector<int64_t>& input_sizes,
                                           const c10d::AllToAllOptions& options) {
  check(all_usable({output}, input, false), "all_to_all", "dense CPU tensors of one dtype");
  const Below below;
  const Input from(input);
  const Output to(output);
  const auto parts_by = [&](const std::vector<int64_t>& sizes, const at::Tensor& tensor) {
    const std::vector<int64_t> counts =
        elements_by_rank(sizes, tensor, size_,
                         [&](bool ok, const std::string& expected) { check(ok, "all_to_all", expected); });
    const at::Tensor flat = tensor.view({-1});
    std::vector<Part> parts;
    int64_t at = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t length = counts[static_cast<size_t>(peer)];
      parts.push_back({peer, flat.narrow(0, at, length)});
      at += length;
    }
    return parts;
  };
  return exchange(OpType::ALLTOALL_BASE, "all_to_all", {output}, parts_by(input_sizes, from.tensor()),
                  parts_by(output_sizes, to.tensor()), options.timeout, [to] { to.save(); });
}

MpiBackend::Work MpiBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllToAllOptions& options) {
  const auto fits = [&](const Tensors& tensors) {
    return static_cast<int>(tensors.size()) == size_ &&
           std::all_of(tensors.begin(), tensors.end(),
                       [this](const at::Tensor& tensor) { return is_usable(tensor); });
  };
  check(fits(inputs) && fits(outputs), "all_to_all", concat(size_, " dense CPU inputs and outputs"));
  const Below below;
  const std::vector<Output> to = outputs_of(outputs);
  std::vector<Part> sent;
  std::vector<Part> taken;
  for (int peer = 0; peer < size_; ++peer) {
    sent.push_back({peer, Input(inputs[static_cast<size_t>(peer)]).tensor()});
    taken.push_back({peer, to[static_cast<size_t>(peer)].tensor()});
  }
  return exchange(OpType::ALLTOALL, "all_to_all", outputs, std::move(sent), std::move(taken), options.timeout,
                  [to] { save(to); });
}

MpiBackend::Work MpiBackend::message(Tensors& tensors, int peer, int tag, bool is_send) {
  const bool any = peer == mpi::kAnySource;
  const char* const name = is_send ? "send" : "recv";
  check(tensors.size() == 1 && is_usable(tensors[0]) && peer < size_ && peer != rank_ && (any || peer >= 0),
        name, "one dense CPU tensor and the number of another rank");
  const Below below;
  settle(tensors);
  ++sequence_;
  const auto type = is_send ? OpType::SEND : any ? OpType::RECVANYSOURCE : OpType::RECV;
  auto work = c10::make_intrusive<TensorWork>(rank_, type, is_send ? Tensors() : tensors);
  std::string text =
      concat(name, " of ", tensors[0].nbytes(), " bytes with tag ", tag, is_send ? " to " : " from ",
             any ? std::string("any rank") : concat("rank ", peer));
  const Output plain(tensors[0], /*read_too=*/is_send);
  group_->run_message(
      std::move(text), timeout(std::chrono::milliseconds(0)),
      [=](mpi::Calls& calls) {
        if (is_send) {
          calls.send(plain.tensor().const_data_ptr(), plain.bytes(), peer, tag);
        } else {
          calls.receive(plain.data(), plain.bytes(), peer, tag);
        }
      },
      [work, plain, is_send](std::exception_ptr error, int source) {
        try {
          const Below below_here;
          if (!error && !is_send) plain.save();
          settle(work->result());
        } catch (...) {
          error = std::current_exception();
        }
        work->complete(error, source);
      });
  return work;
}

MpiBackend::Work MpiBackend::send(Tensors& tensors, int destination, int tag) {
  check(destination >= 0, "send", "the number of another rank");
  return message(tensors, destination, tag, /*is_send=*/true);
}

MpiBackend::Work MpiBackend::recv(Tensors& tensors, int source, int tag) {
  check(source >= 0, "recv", "the number of another rank");
  return message(tensors, source, tag, /*is_send=*/false);
}

MpiBackend::Work MpiBackend::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, mpi::kAnySource, tag, /*is_send=*/false);
}

MpiBackend::Work MpiBackend::barrier(const c10d::BarrierOptions& options) {
  return run(
      OpType::BARRIER, "barrier", {}, options.timeout, [](mpi::Calls& calls) { calls.barrier(); }, [] {});
}

void MpiBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool /*wait_all_ranks*/) {
  barrier(options)->wait();
}

c10d::Backend& MpiBackend::gloo() {
  const std::lock_guard lock(gloo_mutex_);
  if (!gloo_) gloo_ = make_gloo_backend(request_);
  return *gloo_;
}

}  // namespace accelerate::detail
