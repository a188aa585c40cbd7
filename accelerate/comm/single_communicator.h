#pragma once

#include "accelerate/comm/communicator.h"

namespace accelerate::detail {

/// The group of one: every collective is its own result.
std::shared_ptr<Communicator> make_single_communicator(std::chrono::milliseconds timeout);

/// Throws ConfigError for a mean of integers, which no dtype can hold.
void check_reduce(const at::Tensor& tensor, ReduceOp op, int rank);

}  // namespace accelerate::detail
