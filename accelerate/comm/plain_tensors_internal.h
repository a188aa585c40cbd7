#pragma once

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "accelerate/comm/shm/reduce.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

// Tensors as plain memory, for the back ends of ours. `over` says in errors what carries the operation.
namespace accelerate::detail {

inline shm::Element element_of(const at::Tensor& tensor, const char* over, int rank) {
  using shm::Element;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Element::kFloat;
    case at::kDouble:
      return Element::kDouble;
    case at::kHalf:
      return Element::kHalf;
    case at::kBFloat16:
      return Element::kBFloat16;
    case at::kChar:
      return Element::kInt8;
    case at::kByte:
      return Element::kUint8;
    case at::kShort:
      return Element::kInt16;
    case at::kInt:
      return Element::kInt32;
    case at::kLong:
      return Element::kInt64;
    case at::kBool:
      return Element::kBool;
    default:
      throw ConfigError({.what = concat("a reduction over ", over),
                         .expected = "a tensor of floating, integer or bool dtype",
                         .got = c10::toString(tensor.scalar_type()),
                         .rank = rank});
  }
}

inline shm::Reduction reduction_of(const c10d::ReduceOp& op, const char* over, int rank) {
  using shm::Reduction;
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kXor;
    default:
      throw ConfigError({.what = concat("a reduction over ", over),
                         .expected = "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR or BXOR",
                         .got = concat("number ", static_cast<int>(op.op_), " of c10d's ReduceOp"),
                         .rank = rank});
  }
}

// Collectives move memory and leave no trace in autograd, whatever the tensors are part of.
using Below = at::AutoDispatchBelowADInplaceOrView;

inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

inline at::Tensor plain_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

/// A tensor that is read, as contiguous memory.
class Input {
 public:
  explicit Input(const at::Tensor& tensor) : plain_(tensor) {
    if (!is_plain(tensor)) plain_ = plain_like(tensor).copy_(tensor);
  }
  const void* data() const { return plain_.const_data_ptr(); }
  const at::Tensor& tensor() const { return plain_; }
  size_t bytes() const { return plain_.nbytes(); }

 private:
  at::Tensor plain_;
};

/// A tensor that is written, as contiguous memory; save() brings what was written to where it belongs.
class Output {
 public:
  explicit Output(const at::Tensor& tensor, bool read_too = false) : tensor_(tensor), plain_(tensor) {
    if (is_plain(tensor)) return;
    plain_ = plain_like(tensor);
    if (read_too) plain_.copy_(tensor);
  }
  void* data() const { return plain_.mutable_data_ptr(); }
  const at::Tensor& tensor() const { return plain_; }
  size_t bytes() const { return plain_.nbytes(); }
  void save() const {
    if (!plain_.is_same(tensor_)) tensor_.copy_(plain_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor plain_;
};

inline std::vector<Input> inputs_of(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

inline std::vector<Output> outputs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Output> out;
  for (const at::Tensor& tensor : tensors) out.emplace_back(tensor);
  return out;
}

inline std::vector<const void*> pointers(const std::vector<Input>& inputs) {
  std::vector<const void*> out;
  for (const Input& input : inputs) out.push_back(input.data());
  return out;
}

inline std::vector<void*> pointers(const std::vector<Output>& outputs) {
  std::vector<void*> out;
  for (const Output& output : outputs) out.push_back(output.data());
  return out;
}

inline void save(const std::vector<Output>& outputs) {
  for (const Output& output : outputs) output.save();
}

inline bool is_dense_cpu(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided;
}

inline bool all_like(const std::vector<at::Tensor>& tensors, const at::Tensor& model) {
  return is_dense_cpu(model) && std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           return is_dense_cpu(tensor) && tensor.scalar_type() == model.scalar_type() &&
                  tensor.numel() == model.numel();
         });
}

// Equal parts of a contiguous tensor's memory.
inline std::vector<at::Tensor> parts_of(const at::Tensor& whole, int count) {
  const int64_t each = whole.numel() / count;
  const at::Tensor flat = whole.view({-1});
  std::vector<at::Tensor> out;
  for (int part = 0; part < count; ++part) out.push_back(flat.narrow(0, part * each, each));
  return out;
}

// How many elements of `tensor` each rank of an all_to_all gives or gets. `sizes` are rows of the first
// dimension; none means equal shares. `check(ok, expected)` throws where something is not as expected.
template <class Check>
std::vector<int64_t> elements_by_rank(const std::vector<int64_t>& sizes, const at::Tensor& tensor, int ranks,
                                      const Check& check) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  std::vector<int64_t> split = sizes;
  if (split.empty()) {
    check(rows % ranks == 0, concat("a first dimension that is a multiple of ", ranks));
    split.assign(static_cast<size_t>(ranks), rows / ranks);
  }
  int64_t total = 0;
  for (const int64_t part : split) total += part;
  check(static_cast<int>(split.size()) == ranks && total == rows &&
            std::all_of(split.begin(), split.end(), [](int64_t part) { return part >= 0; }),
        concat("one size a rank, together the first dimension of ", rows));
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  for (int64_t& part : split) part *= row;
  return split;
}

// Sums of complex numbers are those of their parts.
inline at::Tensor as_numbers(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return tensor.is_complex() && c10d::isComplexViewAsRealAllowed(op) ? at::view_as_real(tensor) : tensor;
}

}  // namespace accelerate::detail
