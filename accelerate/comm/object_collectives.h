#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/comm/communicator.h"

// Collectives over things that differ in size between ranks.
namespace accelerate {

/// Collective. Every rank's bytes, in rank order.
std::vector<std::string> all_gather_bytes(Communicator& communicator, const std::string& own);

/// Collective. The bytes of rank `root`.
std::string broadcast_bytes(Communicator& communicator, const std::string& own, int root);

/// Filling up to one size; see pad_across_processes().
struct PadOptions {
  /// The dimension that may differ; negative counts from the end.
  int64_t dim = 0;
  /// What is filled in.
  double pad_index = 0;
  /// Fill in before the values instead of after them.
  bool pad_first = false;
};

/// Collective. `tensor` filled up along one dimension to the longest of all ranks, so that it can be
/// gathered. Tensors that have no such dimension come back as they are.
/// @throws CommError when the ranks' tensors differ in their number of dimensions or in another dimension,
/// with all shapes.
at::Tensor pad_across_processes(Communicator& communicator, const at::Tensor& tensor,
                                const PadOptions& options);

/// Collective. The rows of all ranks, of which each may have another number, joined in rank order.
/// @throws CommError as pad_across_processes().
at::Tensor gather_rows(Communicator& communicator, const at::Tensor& rows);

}  // namespace accelerate
