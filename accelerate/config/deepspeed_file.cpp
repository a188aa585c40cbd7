#include "accelerate/config/deepspeed_file.h"

#include <algorithm>

#include "accelerate/config/config_file.h"
#include "accelerate/config/deepspeed_check.h"
#include "accelerate/config/deepspeed_rows.h"
#include "accelerate/config/excerpt.h"
#include "accelerate/config/json_reader.h"
#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using detail::DeepSpeedRow;
using detail::RawNode;

// Turns the file's tree into a DeepSpeedFile.
class Reader {
 public:
  Reader(const std::string& path, bool allow_unknown) : allow_unknown_(allow_unknown) {
    out_.file.file = path;
  }

  InspectedDeepSpeedFile run(const RawNode& root) {
    take_section(root, {});
    return std::move(out_);
  }

 private:
  ValueOrigin at(int line) const { return {Origin::kFile, out_.file.file, line}; }

  void report(Severity severity, std::string_view key, const std::string& what, const std::string& hint,
              int line) {
    out_.problems.push_back({severity, ProblemKind::kContent, std::string(key), what, hint, at(line)});
  }
  void error(std::string_view key, const std::string& what, const std::string& hint, int line) {
    report(Severity::kError, key, what, hint, line);
  }

  static std::string path_of(std::string_view section, std::string_view name) {
    return section.empty() ? std::string(name) : concat(section, ".", name);
  }

  void take_section(const RawNode& map, std::string_view section) {
    for (const auto& entry : map.entries) {
      const std::string path = path_of(section, detail::excerpt(entry.key));
      const DeepSpeedRow* row = detail::find_deepspeed_key(section, entry.key);
      const auto [before, first] =
          lines_.try_emplace(row == nullptr ? path : std::string(row->name), entry.line);
      if (!first) {
        error(path, concat("key is given twice, in lines ", before->second, " and ", entry.line),
              "Keep one of them.", entry.line);
        continue;
      }
      if (row != nullptr) {
        take_entry(*row, entry);
      } else if (section == "zero_optimization" && entry.key == "cpu_offload") {
        take_old_offload(entry);
      } else if (detail::is_unused_deepspeed_key(section, entry.key)) {
        out_.file.unused.push_back(path);
      } else {
        unknown_key(section, entry, path);
      }
    }
  }

  void unknown_key(std::string_view section, const RawNode::Entry& entry, const std::string& path) {
    // Each search takes a while, and no file has hundreds of slips.
    constexpr int kMostHints = 50;
    const auto near =
        ++unknown_ > kMostHints ? std::nullopt : detail::nearest_deepspeed_key(section, entry.key);
    if (!near) return report(Severity::kWarning, path, "unknown key, without effect", {}, entry.line);
    const std::string hint = concat("Did you mean ", *near, "?");
    if (allow_unknown_) return report(Severity::kWarning, path, "unknown key, left out", hint, entry.line);
    error(path, "unknown key", hint, entry.line);
  }

  void take_entry(const DeepSpeedRow& row, const RawNode::Entry& entry) {
    const RawNode& value = entry.value;
    if (value.kind == RawNode::Kind::kNull) return;
    out_.file.origins[std::string(row.name)] = at(entry.line);
    if (row.name == "zero_optimization" && value.kind == RawNode::Kind::kScalar && parse_bool(value.text)) {
      return take_old_zero(row, *parse_bool(value.text), entry.line);
    }
    const std::string expected =
        row.is_section() ? "a block of keys: {...}" : expected_text(row.rule(), true);
    if (row.is_section() != (value.kind == RawNode::Kind::kMap)) {
      const std::string got = value.kind == RawNode::Kind::kMap ? "a block of keys"
                              : value.kind == RawNode::Kind::kList
                                  ? "a list"
                                  : concat("'", detail::excerpt(value.text), "'");
      return error(row.name, concat("expected ", expected, ", got ", got), {}, entry.line);
    }
    if (row.leaf() == "params") {
      take_params(row.section() == "optimizer" ? out_.file.optimizer : out_.file.scheduler, row.name, value);
    } else if (row.is_section()) {
      take_section(value, row.name);
    } else if (value.kind == RawNode::Kind::kList) {
      error(row.name, concat("expected ", expected, ", got a list"), {}, entry.line);
    } else {
      take_value(row, value.text, entry.line);
    }
  }

  void take_value(const DeepSpeedRow& row, const std::string& text, int line) {
    const SetResult result = set_slot(row.slot(out_.file), row.rule(), text);
    if (!result.error.empty()) return error(row.name, result.error, {}, line);
    if (to_lower(trim(text)) == "auto") out_.file.autos.emplace_back(row.name);
  }

  void take_params(DeepSpeedComponent& component, std::string_view path, const RawNode& map) {
    for (const auto& entry : map.entries) {
      const RawNode& value = entry.value;
      const std::string key = path_of(path, detail::excerpt(entry.key));
      if (value.kind == RawNode::Kind::kNull) continue;
      OrAuto<std::vector<std::string>> texts;
      if (value.kind == RawNode::Kind::kScalar && to_lower(value.text) == "auto") {
        out_.file.autos.push_back(key);
      } else if (!(texts.value = texts_of(value))) {
        error(key, "expected a value or a list of values, got nested ones", {}, entry.line);
        continue;
      }
      out_.file.origins[key] = at(entry.line);
      if (!component.params.emplace(entry.key, std::move(texts)).second) {
        error(key, "key is given twice", "Keep one of them.", entry.line);
      }
    }
  }

  static std::optional<std::vector<std::string>> texts_of(const RawNode& value) {
    if (value.kind == RawNode::Kind::kScalar) return std::vector<std::string>{value.text};
    if (value.kind != RawNode::Kind::kList) return std::nullopt;
    std::vector<std::string> out;
    for (const RawNode& item : value.items) {
      if (item.kind != RawNode::Kind::kScalar) return std::nullopt;
      out.push_back(item.text);
    }
    return out;
  }

  // "zero_optimization": true of DeepSpeed before 0.2 is stage 1.
  void take_old_zero(const DeepSpeedRow& row, bool on, int line) {
    out_.file.zero.stage = OrAuto<int64_t>{on ? 1 : 0};
    report(Severity::kWarning, row.name, concat("value of an old release; read as stage ", on ? 1 : 0),
           concat("Write \"zero_optimization\": {\"stage\": ", on ? 1 : 0, "}."), line);
  }

  // "cpu_offload": true of DeepSpeed before 0.4 is "offload_optimizer": {"device": "cpu"}.
  void take_old_offload(const RawNode::Entry& entry) {
    const auto on = entry.value.kind == RawNode::Kind::kScalar ? parse_bool(entry.value.text) : std::nullopt;
    constexpr std::string_view kKey = "zero_optimization.cpu_offload";
    if (!on) return error(kKey, "expected true or false", {}, entry.line);
    report(Severity::kWarning, kKey, "key of an old release; today's is offload_optimizer.device",
           *on ? R"(Write "offload_optimizer": {"device": "cpu"}.)" : "Leave it out.", entry.line);
    auto& device = out_.file.zero.offload_optimizer.device;
    if (*on && !device) device = OrAuto<std::string>{"cpu"};
  }

  InspectedDeepSpeedFile out_;
  bool allow_unknown_;
  int unknown_ = 0;
  std::map<std::string, int> lines_;
};

RawNode read_map(const std::string& path) {
  RawNode root = detail::read_json(
      detail::read_text_file(path, {.noun = "DeepSpeed file", .made_by_config = false}), path);
  if (root.kind == RawNode::Kind::kMap) return root;
  throw ConfigError({.what = concat(path, ": no DeepSpeed configuration"),
                     .expected = "keys and values in braces: {\"zero_optimization\": {\"stage\": 2}}",
                     .got = root.kind == RawNode::Kind::kList ? "a list" : "a single value"});
}

}  // namespace

namespace detail {

bool is_deepspeed_map(const RawNode& root) {
  bool sections = false;
  for (const auto& entry : root.entries) {
    if (entry.key == "compute_environment" || entry.key == "distributed_type") return false;
    const bool block = entry.value.kind == RawNode::Kind::kMap;
    sections = sections || entry.key == "train_batch_size" || entry.key == "train_micro_batch_size_per_gpu" ||
               (block && (entry.key == "zero_optimization" || entry.key == "fp16" || entry.key == "bf16" ||
                          entry.key == "bfloat16" || entry.key == "optimizer"));
  }
  return sections;
}

}  // namespace detail

std::optional<int64_t> DeepSpeedFile::stage() const {
  if (zero.stage) return zero.stage->value;
  // A value that could not be used is not 0.
  return origins.contains("zero_optimization.stage") ? std::nullopt : std::optional<int64_t>(0);
}

InspectedDeepSpeedFile inspect_deepspeed_file(const std::filesystem::path& path,
                                              const DeepSpeedReadOptions& options) {
  const RawNode root = read_map(path.string());
  InspectedDeepSpeedFile out = Reader(path.string(), options.allow_unknown_keys).run(root);
  detail::check_deepspeed(out.file, options.num_processes, out.problems);
  std::stable_sort(out.problems.begin(), out.problems.end(),
                   [](const Problem& a, const Problem& b) { return a.where.line < b.where.line; });
  return out;
}

DeepSpeedFile read_deepspeed_file(const std::filesystem::path& path, const DeepSpeedReadOptions& options) {
  InspectedDeepSpeedFile read = inspect_deepspeed_file(path, options);
  throw_if_errors(read.problems);
  return std::move(read.file);
}

bool is_deepspeed_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  try {
    return detail::is_deepspeed_map(read_map(path.string()));
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace accelerate
