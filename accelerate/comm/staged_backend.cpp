#include "accelerate/comm/staged_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "accelerate/comm/tensor_work_internal.h"

namespace accelerate::detail {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

at::Tensor to_cpu(const at::Tensor& tensor) {
  return tensor.detach().cpu().contiguous();
}

Tensors to_cpu(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& tensor : tensors) out.push_back(to_cpu(tensor));
  return out;
}

std::vector<Tensors> to_cpu(const std::vector<Tensors>& lists) {
  std::vector<Tensors> out;
  for (const Tensors& list : lists) out.push_back(to_cpu(list));
  return out;
}

void bring_back(const Tensors& to, const Tensors& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

class StagedBackend final : public c10d::Backend {
 public:
  explicit StagedBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE, tensors,
                    [&](Tensors& staged) { return inner_->allreduce(staged, options); });
  }
  Work allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return in_place(c10d::OpType::ALLREDUCE_COALESCED, tensors,
                    [&](Tensors& staged) { return inner_->allreduce_coalesced(staged, options); });
  }
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(c10d::OpType::BROADCAST, tensors,
                    [&](Tensors& staged) { return inner_->broadcast(staged, options); });
  }
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return in_place(c10d::OpType::REDUCE, tensors,
                    [&](Tensors& staged) { return inner_->reduce(staged, options); });
  }
  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::AllgatherOptions& options) override {
    return moved(c10d::OpType::ALLGATHER, outputs.at(0), [&](Tensors& to) {
      std::vector<Tensors> lists = {to};
      Tensors from = to_cpu(inputs);
      return inner_->allgather(lists, from, options);
    });
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    return moved(c10d::OpType::_ALLGATHER_BASE, {output}, [&](Tensors& to) {
      at::Tensor from = to_cpu(input);
      return inner_->_allgather_base(to[0], from, options);
    });
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return moved(c10d::OpType::GATHER, outputs.empty() ? Tensors() : outputs[0], [&](Tensors& to) {
      std::vector<Tensors> lists;
      if (!outputs.empty()) lists.push_back(to);
      Tensors from = to_cpu(inputs);
      return inner_->gather(lists, from, options);
    });
  }
  Work scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    return moved(c10d::OpType::SCATTER, outputs, [&](Tensors& to) {
      std::vector<Tensors> from = to_cpu(inputs);
      return inner_->scatter(to, from, options);
    });
  }
  Work reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override {
    return moved(c10d::OpType::REDUCE_SCATTER, outputs, [&](Tensors& to) {
      std::vector<Tensors> from = to_cpu(inputs);
      return inner_->reduce_scatter(to, from, options);
    });
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    return moved(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, [&](Tensors& to) {
      at::Tensor from = to_cpu(input);
      return inner_->_reduce_scatter_base(to[0], from, options);
    });
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                     std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return moved(c10d::OpType::ALLTOALL_BASE, {output}, [&](Tensors& to) {
      at::Tensor from = to_cpu(input);
      return inner_->alltoall_base(to[0], from, output_sizes, input_sizes, options);
    });
  }
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return moved(c10d::OpType::ALLTOALL, outputs, [&](Tensors& to) {
      Tensors from = to_cpu(inputs);
      return inner_->alltoall(to, from, options);
    });
  }
  Work send(Tensors& tensors, int destination, int tag) override {
    Tensors staged = to_cpu(tensors);
    inner_->send(staged, destination, tag)->wait();
    return TensorWork::done(rank_, c10d::OpType::SEND, tensors);
  }
  Work recv(Tensors& tensors, int source, int tag) override {
    return moved(c10d::OpType::RECV, tensors,
                 [&](Tensors& staged) { return inner_->recv(staged, source, tag); });
  }
  Work barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

 private:
  // `run` changes tensors in place.
  template <class F>
  Work in_place(c10d::OpType type, const Tensors& tensors, const F& run) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensors staged = to_cpu(tensors);
    run(staged)->wait();
    bring_back(tensors, staged);
    return TensorWork::done(rank_, type, tensors);
  }

  // `run` fills outputs.
  template <class F>
  Work moved(c10d::OpType type, const Tensors& outputs, const F& run) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensors staged;
    for (const at::Tensor& output : outputs) {
      staged.push_back(at::empty(output.sizes(), output.options().device(at::kCPU)));
    }
    run(staged)->wait();
    bring_back(outputs, staged);
    return TensorWork::done(rank_, type, outputs);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> stage_through_cpu(c10::intrusive_ptr<c10d::Backend> inner) {
  return c10::make_intrusive<StagedBackend>(std::move(inner));
}

}  // namespace accelerate::detail
