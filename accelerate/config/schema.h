#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "accelerate/config/config.h"

namespace accelerate {

/// How a key's text becomes a value.
enum class ValueType {
  kBool,
  kInt,     ///< integral; "1e8" and "100000000.0" count
  kNumber,  ///< floating point
  kText,    ///< a list in the file is joined by commas
  kWord,    ///< one of the allowed words, any case
  kList,    ///< list of texts; a text is split at commas
  kGpuIds,  ///< "all", or device numbers / GPU-... names separated by commas
  kBlock,   ///< holds other keys
};

/// What this release does with a key.
enum class Support {
  kWorks,     ///< has its effect; where `works` names values, only those
  kNotYet,    ///< read and kept; refused by name when asked for
  kNoEffect,  ///< read and kept; means nothing here (TPU pods, torch.compile)
  kForeign,   ///< belongs to another kind of file, or was removed upstream; dropped with a warning
};

/// Whether write_yaml() writes a key that nobody gave.
enum class Written { kAlways, kWhenGiven };

/// Points at the member of a Config (or of another file's struct) that holds a key's value.
using Slot = std::variant<bool*, int64_t*, std::string*, std::optional<bool>*, std::optional<int64_t>*,
                          std::optional<double>*, std::optional<std::string>*, std::optional<OrAuto<bool>>*,
                          std::optional<OrAuto<int64_t>>*, std::optional<OrAuto<double>>*,
                          std::optional<OrAuto<std::string>>*, std::optional<std::vector<std::string>>*,
                          DistributedType*, MixedPrecision*>;

/// One key. Lists inside a column are separated by '|'.
struct KeyRow {
  std::string_view name;  ///< dotted path, "fsdp_config.fsdp_version"
  ValueType type = ValueType::kText;
  Slot (*slot)(Config&) = nullptr;     ///< none for blocks and kForeign
  std::string_view help;               ///< one line
  std::string_view allowed = {};       ///< words of a kWord ("no|fp16"), or the range of a kInt or kNumber
                                       ///< ("0..65535", "1..")
  std::string_view default_text = {};  ///< what is used when nobody says anything; empty = nothing
  std::string_view environment = {};   ///< variables, the first given wins
  std::string_view flag = {};       ///< name of the command-line flag where it is not the last part of `name`
  std::string_view old_names = {};  ///< spellings of earlier releases
  std::string_view old_values = {};   ///< "TPU=XLA|..."
  Support support = Support::kWorks;  ///< a key inside a block has that of its block, see support_of()
  std::string_view works = {};        ///< for kWorks: values that work today; empty = all
  Written written = Written::kWhenGiven;
  bool ours = false;             ///< HF Accelerate has no such key in its files
  std::string_view prefix = {};  ///< kBlock: "fsdp_", which its keys may carry or lack
  /// kBlock: the distributed_type or mixed_precision with which it is used; empty = decided by its own
  /// values.
  std::string_view used_with = {};
  /// Another key and the value with which alone this one has an effect: "fsdp_config.fsdp_version=1".
  std::string_view needs = {};
  /// kForeign: the key that took its place; `old_values` then translates the values.
  std::string_view moved_to = {};

  std::string_view leaf() const;   ///< "fsdp_version"
  std::string_view block() const;  ///< "fsdp_config", or empty at the top
  std::string flag_name() const;   ///< "cpu", without dashes
};

/// All keys, blocks before their members.
std::span<const KeyRow> schema();

/// By exact dotted path; nullptr if there is none.
const KeyRow* find_row(std::string_view path);

/// A key as it may stand in a file, inside `block` ("" = top level): also old spellings and a missing or
/// superfluous block prefix.
const KeyRow* find_key_in_file(std::string_view block, std::string_view name);

/// A key as it may be named on a command line or in code: dotted path, last part, flag name or old name; '-'
/// and '_' are the same and leading dashes are ignored.
const KeyRow* find_key(std::string_view name);

/// The likeliest right spelling of an unknown key inside `block`, or nothing.
std::optional<std::string> nearest_key(std::string_view block, std::string_view name);

/// The block whose prefix a name has ("fsdp_whatever"), or nullptr.
const KeyRow* block_of_prefix(std::string_view name);

/// The row's support, or that of its block.
Support support_of(const KeyRow& row);

/// The parts of a column between '|'.
std::vector<std::string> words_of(std::string_view column);

/// "no, fp16, bf16 or fp8" / "an integer from 0 to 65535": what a value of this key may be.
std::string expected_text(const KeyRow& row);
/// The same for a row without a slot of its own.
std::string expected_text(const KeyRow& row, bool or_auto);

/// A reference of all keys, one a line with values, default, variable and help, for `accel config keys`.
std::string describe_schema();

// Values as text. A value's text reads back to the same value.

/// The value of a key, or nothing where it is not set. Blocks have none.
std::optional<std::string> value_text(const Config& config, const KeyRow& row);

/// What happened to a text that was set.
struct SetResult {
  std::string error;    ///< empty if the value was taken; else what is wrong with the text
  std::string warning;  ///< old spelling and the like
};

/// Converts `text` by the row's type and stores it. Leaves the value alone on error. Does not touch origins.
SetResult set_value(Config& config, const KeyRow& row, std::string_view text);

/// The same for a value that lies anywhere: `row` says how the text is read, `slot` where the value goes.
SetResult set_slot(const Slot& slot, const KeyRow& row, std::string_view text);

/// True where the slot can hold "auto" in place of a value.
bool takes_auto(const Slot& slot);

/// Back to the default (unset where there is none).
void reset_value(Config& config, const KeyRow& row);

/// The keys whose values differ between two configurations; origins do not count.
std::vector<std::string> differing_keys(const Config& a, const Config& b);

}  // namespace accelerate
