#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <type_traits>

#include "accelerate/comm/tensor_structure.h"

namespace accelerate {

/// Runs operations in a lower precision where torch's autocast lists say that it is safe, for as long as it
/// lives; matrix products and convolutions take `dtype`, sums and losses stay in float32. Guards nest, and
/// each restores what it found, also when an exception leaves its scope. Copies of weights that were made
/// within are dropped when the outermost guard ends, so that loops do not collect them. For this thread. As
/// torch.autocast in Python.
class [[nodiscard]] AutocastGuard {
 public:
  /// `dtype`: kBFloat16 or kHalf. With `enabled` off, operations within run in the precision of their inputs.
  AutocastGuard(at::DeviceType device_type, at::ScalarType dtype, bool enabled = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  at::DeviceType device_type_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
  bool cache_before_;
};

/// In which precision a prepared model's forward runs.
struct ForwardPrecision {
  at::DeviceType device_type = at::kCPU;
  /// Nothing: that of the weights.
  std::optional<at::ScalarType> autocast_dtype = std::nullopt;
  /// Outputs in half precision are converted to float32, so that the loss is computed in it.
  bool convert_outputs_to_fp32 = true;

  /// Runs `forward` in this precision.
  template <class F>
  auto run(F&& forward) const {
    if (!autocast_dtype) return forward();
    auto output = [&] {
      const AutocastGuard guard(device_type, *autocast_dtype);
      return forward();
    }();
    if (convert_outputs_to_fp32) {
      for_each_tensor(output, [](at::Tensor& tensor) {
        const bool half =
            tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
        if (half) tensor = tensor.to(at::kFloat);
      });
    }
    return output;
  }
};

}  // namespace accelerate
