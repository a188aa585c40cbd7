#include "accelerate/config/schema.h"

#include <algorithm>

#include "accelerate/config/schema_rows.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::string folded(std::string_view text) {
  while (!text.empty() && text.front() == '-') text.remove_prefix(1);
  std::string out = to_lower(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

bool has_word(std::string_view column, std::string_view word) {
  const auto words = words_of(column);
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool can_be_set(const KeyRow& row) {
  return row.slot != nullptr || row.type == ValueType::kBlock;
}

std::string joined_or(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += words[i];
  }
  return out;
}

std::string range_text(std::string_view noun, std::string_view allowed) {
  const size_t dots = allowed.find("..");
  if (dots == std::string_view::npos) return std::string(noun);
  const std::string_view low = allowed.substr(0, dots);
  const std::string_view high = allowed.substr(dots + 2);
  if (high.empty()) return concat(noun, ", ", low, " or more");
  return concat(noun, " from ", low, " to ", high);
}

bool row_takes_auto(const KeyRow& row) {
  if (row.slot == nullptr) return false;
  Config config;
  return takes_auto(row.slot(config));
}

}  // namespace

std::string_view KeyRow::leaf() const {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

std::string_view KeyRow::block() const {
  const size_t dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

std::string KeyRow::flag_name() const {
  return std::string(flag.empty() ? leaf() : flag);
}

std::span<const KeyRow> schema() {
  return detail::schema_rows();
}

const KeyRow* find_row(std::string_view path) {
  for (const KeyRow& row : schema()) {
    if (row.name == path) return &row;
  }
  return nullptr;
}

const KeyRow* find_key_in_file(std::string_view block, std::string_view name) {
  const KeyRow* owner = block.empty() ? nullptr : find_row(block);
  const std::string_view prefix = owner == nullptr ? std::string_view() : owner->prefix;
  const std::string with_prefix = concat(prefix, name);
  const std::string_view without_prefix =
      !prefix.empty() && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  const std::string_view spellings[] = {name, with_prefix, without_prefix};
  for (std::string_view spelling : spellings) {
    for (const KeyRow& row : schema()) {
      if (row.block() == block && row.leaf() == spelling) return &row;
    }
  }
  for (std::string_view spelling : spellings) {
    for (const KeyRow& row : schema()) {
      if (row.block() == block && has_word(row.old_names, spelling)) return &row;
    }
  }
  return nullptr;
}

const KeyRow* find_key(std::string_view name) {
  const std::string wanted = folded(name);
  // From the most to the least exact way of naming a key; within one way the top level comes first in the
  // table.
  for (int way = 0; way < 4; ++way) {
    for (const KeyRow& row : schema()) {
      if (!can_be_set(row)) continue;
      const bool same = way == 0   ? row.name == wanted
                        : way == 1 ? row.leaf() == wanted
                        : way == 2 ? row.flag_name() == wanted
                                   : has_word(row.old_names, wanted);
      if (same) return &row;
    }
  }
  return nullptr;
}

namespace {

// "megatron_lm_tp_size" is no slip of megatron_lm_config, "megatron_lm_confg" is one.
bool is_rather_a_member(const KeyRow& block, std::string_view name) {
  static const std::vector<std::string> kEnd = {"config"};
  return block.type == ValueType::kBlock && !block.prefix.empty() && name.starts_with(block.prefix) &&
         !nearest_name(name.substr(block.prefix.size()), kEnd);
}

}  // namespace

std::optional<std::string> nearest_key(std::string_view block, std::string_view name) {
  constexpr std::string_view kBlockEnd = "_config";
  // The end that all blocks share makes none of them likelier.
  const bool as_block = block.empty() && name.ends_with(kBlockEnd);
  std::vector<std::string> candidates;
  for (const KeyRow& row : schema()) {
    if (row.block() != block || row.support == Support::kForeign) continue;
    std::string_view candidate = row.leaf();
    if (as_block && !candidate.ends_with(kBlockEnd)) continue;
    if (!as_block && block.empty() && is_rather_a_member(row, name)) continue;
    if (as_block) candidate.remove_suffix(kBlockEnd.size());
    candidates.emplace_back(candidate);
  }
  if (as_block) name.remove_suffix(kBlockEnd.size());
  if (auto found = nearest_name(name, candidates)) return as_block ? *found + std::string(kBlockEnd) : found;
  // A key that stands in the wrong place: at the top instead of inside its block, or the other way round.
  for (const KeyRow& row : schema()) {
    if (row.support != Support::kForeign && row.leaf() == name) return std::string(row.name);
  }
  return std::nullopt;
}

const KeyRow* block_of_prefix(std::string_view name) {
  for (const KeyRow& row : schema()) {
    if (row.type == ValueType::kBlock && !row.prefix.empty() && name.starts_with(row.prefix)) return &row;
  }
  return nullptr;
}

Support support_of(const KeyRow& row) {
  if (row.support != Support::kWorks || row.block().empty()) return row.support;
  const KeyRow* owner = find_row(row.block());
  return owner == nullptr ? row.support : owner->support;
}

std::vector<std::string> words_of(std::string_view column) {
  return split(column, '|');
}

std::string expected_text(const KeyRow& row) {
  return expected_text(row, row_takes_auto(row));
}

std::string expected_text(const KeyRow& row, bool or_auto) {
  std::string text;
  switch (row.type) {
    case ValueType::kBool:
      text = "true or false";
      break;
    case ValueType::kInt:
      text = range_text("an integer", row.allowed);
      break;
    case ValueType::kNumber:
      text = range_text("a number", row.allowed);
      break;
    case ValueType::kText:
      text = "a text";
      break;
    case ValueType::kWord:
      text = joined_or(words_of(row.allowed));
      break;
    case ValueType::kList:
      text = "a list of texts";
      break;
    case ValueType::kGpuIds:
      text = "all, or device numbers separated by commas (\"0,1\")";
      break;
    case ValueType::kBlock:
      text = concat("a block of indented 'key: value' lines");
      break;
  }
  return or_auto ? text + ", or auto" : text;
}

std::string describe_schema() {
  std::string out;
  for (const KeyRow& row : schema()) {
    if (row.support == Support::kForeign) continue;
    out += concat(row.name, "\n    ", row.help, ".\n    Values: ", expected_text(row));
    if (!row.default_text.empty()) out += concat("; default ", row.default_text);
    out += ".\n";
    if (!row.environment.empty()) {
      out += concat("    Environment: ", join(words_of(row.environment), ", "), "\n");
    }
    const Support support = support_of(row);
    if (support == Support::kNotYet) out += "    Not supported yet: kept, and refused when asked for.\n";
    if (support == Support::kNoEffect) out += "    Kept, without effect here.\n";
    if (support == Support::kWorks && !row.works.empty()) {
      out += concat("    Supported today: ", join(words_of(row.works), ", "), "\n");
    }
    if (row.ours) out += "    Not a key of HF Accelerate's files.\n";
  }
  return out;
}

}  // namespace accelerate
