#pragma once

#include <span>
#include <string_view>

#include "accelerate/config/deepspeed_file.h"
#include "accelerate/config/schema.h"

namespace accelerate::detail {

/// One key of DeepSpeed's JSON file.
struct DeepSpeedRow {
  std::string_view name;  ///< dotted path, "zero_optimization.offload_param.device"
  ValueType type = ValueType::kText;
  Slot (*slot)(DeepSpeedFile&) = nullptr;  ///< none for sections, and for keys that have no part here
  std::string_view allowed = {};           ///< as in KeyRow
  std::string_view old_names = {};         ///< other spellings of the last part, separated by '|'

  std::string_view leaf() const { return name.substr(name.rfind('.') + 1); }
  std::string_view section() const {
    const size_t dot = name.rfind('.');
    return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
  }
  bool is_section() const { return slot == nullptr && type == ValueType::kBlock; }
  /// For set_slot().
  KeyRow rule() const { return {.name = name, .type = type, .help = {}, .allowed = allowed}; }
};

/// All keys that are read, sections before their members.
std::span<const DeepSpeedRow> deepspeed_rows();

/// A known key of a section, also by an other spelling; nullptr if there is none.
const DeepSpeedRow* find_deepspeed_key(std::string_view section, std::string_view name);

/// True for a key that DeepSpeed has there and that has no part here: profilers, trackers, I/O tuning.
bool is_unused_deepspeed_key(std::string_view section, std::string_view name);

/// The likeliest right spelling of an unknown key, with its section where that is another one; or nothing.
std::optional<std::string> nearest_deepspeed_key(std::string_view section, std::string_view name);

}  // namespace accelerate::detail
