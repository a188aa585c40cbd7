#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

// A list shared out to the ranks in one piece each, as HF Accelerate's split_between_processes.
namespace accelerate {

/// Whose part is wanted.
struct SplitPlace {
  int64_t rank = 0;
  int64_t world_size = 1;
  bool apply_padding = false;
};

namespace detail {

/// Positions of a rank's part of `count` inputs; padding repeats the last position.
inline std::vector<int64_t> split_positions(int64_t count, const SplitPlace& place) {
  const int64_t share = count / place.world_size;
  const int64_t extras = count % place.world_size;
  const int64_t begin = place.rank * share + std::min(place.rank, extras);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < share + (place.rank < extras ? 1 : 0); ++i) out.push_back(begin + i);
  if (place.apply_padding && count > 0)
    out.resize(static_cast<size_t>(share + (extras > 0 ? 1 : 0)), count - 1);
  return out;
}

template <class T>
int64_t split_length(const std::vector<T>& inputs) {
  return static_cast<int64_t>(inputs.size());
}
inline int64_t split_length(const at::Tensor& inputs) {
  if (inputs.dim() == 0) {
    throw DataError({.what = "split_between_processes", .expected = "a tensor with rows", .got = "a scalar"});
  }
  return inputs.size(0);
}

}  // namespace detail

/// A rank's part; see Accelerator::split_between_processes().
template <class T>
std::vector<T> split_between(const std::vector<T>& inputs, const SplitPlace& place) {
  std::vector<T> out;
  for (const int64_t i : detail::split_positions(detail::split_length(inputs), place)) {
    out.push_back(inputs[static_cast<size_t>(i)]);
  }
  return out;
}

inline at::Tensor split_between(const at::Tensor& inputs, const SplitPlace& place) {
  const auto positions = detail::split_positions(detail::split_length(inputs), place);
  return inputs.index_select(0, at::tensor(positions, at::TensorOptions(at::kLong)).to(inputs.device()));
}

/// @throws DataError when the values differ in length.
template <class K, class V, class C, class A>
std::map<K, V, C, A> split_between(const std::map<K, V, C, A>& inputs, const SplitPlace& place) {
  std::map<K, V, C, A> out;
  for (const auto& [key, value] : inputs) {
    const int64_t first = detail::split_length(inputs.begin()->second);
    if (detail::split_length(value) != first) {
      throw DataError({.what = concat("split_between_processes: value '", key, "'"),
                       .expected = concat(first, " inputs, as the first value has"),
                       .got = std::to_string(detail::split_length(value))});
    }
    out.emplace(key, split_between(value, place));
  }
  return out;
}

}  // namespace accelerate
