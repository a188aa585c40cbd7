#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/model_size.h"

namespace accelerate::cli {

/// What training keeps in the memory of one rank, the fullest one, in bytes. Activations come on top; they
/// depend on the batch.
struct MemoryEstimate {
  std::string strategy;   ///< "ddp", "zero1", "zero2", "zero3"
  std::string precision;  ///< "fp32", or "bf16/fp16" with master weights in fp32
  bool supported = true;  ///< this release can run it
  uint64_t weights_bytes = 0;
  uint64_t gradients_bytes = 0;
  uint64_t optimizer_bytes = 0;  ///< state, and the master weights

  uint64_t total_bytes() const { return weights_bytes + gradients_bytes + optimizer_bytes; }
};

/// Names that estimate_memory() takes.
inline constexpr std::string_view kOptimizers[] = {"adamw", "sgd", "sgd-momentum"};

/// One estimate for each strategy and precision. Bytes a parameter, after Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models" (2020), section 3: fp32 4 weights, 4 gradients, 8
/// AdamW (two moments; momentum 4, plain sgd 0); bf16/fp16 2, 2 and the same plus 4 of master weights. ZeRO 1
/// divides the optimizer's part by the number of ranks, ZeRO 2 the gradients as well, ZeRO 3 the weights as
/// well.
/// @throws ConfigError for another optimizer.
std::vector<MemoryEstimate> estimate_memory(const ModelSize& model, std::string_view optimizer,
                                            int num_processes);

/// "7B", "1.5b", "350M", "12k", "1e9" or a plain number.
/// @throws ConfigError for anything else, and for less than 1 or more than 1e15.
uint64_t parse_parameter_count(const std::string& text);

/// "46.13 MB": units of 1024, two decimals.
std::string memory_text(uint64_t num_bytes);

/// A table with lines around its cells: the first row is the heading, the first column is aligned to the left
/// and the others to the right. `utf8`: with box characters, else with + - |.
std::string box_table(const std::vector<std::vector<std::string>>& rows, bool utf8);

}  // namespace accelerate::cli
