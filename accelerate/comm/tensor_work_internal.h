#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace accelerate::detail {

/// A piece of work whose result is a list of tensors. Complete from the start, unless it is told later.
class TensorWork final : public c10d::Work {
 public:
  TensorWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         devices_of(outputs_))) {}

  /// Ends the work, well or with an error; `source_rank` sent what was received.
  void complete(const std::exception_ptr& error = nullptr, int source_rank = -1) {
    source_rank_ = source_rank;
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(at::IValue(outputs_));
    }
    finish(error);
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  int sourceRank() const override { return source_rank_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  static c10::intrusive_ptr<c10d::Work> done(int rank, c10d::OpType type, std::vector<at::Tensor> outputs) {
    auto work = c10::make_intrusive<TensorWork>(rank, type, std::move(outputs));
    work->complete();
    return work;
  }

 private:
  // A future is told beforehand on which devices other than the CPU its value lies.
  static std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
    std::vector<c10::Device> out;
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_cpu() && std::find(out.begin(), out.end(), tensor.device()) == out.end())
        out.push_back(tensor.device());
    }
    return out;
  }

  std::vector<at::Tensor> outputs_;
  std::atomic<int> source_rank_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accelerate::detail
