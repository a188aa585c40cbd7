#pragma once

#include <optional>
#include <vector>

#include "accelerate/config/deepspeed_file.h"
#include "accelerate/config/raw.h"

namespace accelerate::detail {

/// True if a file's keys are those of DeepSpeed and not of an accelerate configuration.
bool is_deepspeed_map(const RawNode& root);

/// Adds what contradicts itself in a file: precisions, offload and stage, batch sizes.
void check_deepspeed(const DeepSpeedFile& file, std::optional<int64_t> num_processes,
                     std::vector<Problem>& problems);

/// A key that stands in an accelerate configuration and in its DeepSpeed file, with different values.
struct DeepSpeedConflict {
  std::string key;      ///< of the accelerate configuration
  std::string value;    ///< there
  std::string in_file;  ///< "zero_optimization.stage 3" of the DeepSpeed file
};
std::vector<DeepSpeedConflict> find_conflicts(const Config& config, const DeepSpeedFile& file);

}  // namespace accelerate::detail
