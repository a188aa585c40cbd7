#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "accelerate/comm/tensor_structure.h"

namespace accelerate {

/// Named tensors.
using TensorDict = std::map<std::string, at::Tensor>;

/// One batch of a tensor data set: row i of every tensor belongs to sample i. Data sets made of an Example or
/// a pair have the names "data" and "target", which are members here; all others are found by name.
struct Batch {
  at::Tensor data;
  at::Tensor target;
  TensorDict others;

  /// @throws DataError listing the names there are.
  at::Tensor& operator[](const std::string& name);
  const at::Tensor& operator[](const std::string& name) const;
  bool contains(const std::string& name) const;
  /// Samples in the batch.
  int64_t size() const;

  /// See Note [Tensor structures] and Note [Values as bytes].
  template <class Archive>
  void serialize(Archive& archive) {
    archive(data, target, others);
  }
};

}  // namespace accelerate
