#include "accelerate/config/load.h"

#include <algorithm>

#include "accelerate/config/config_file.h"
#include "accelerate/config/deepspeed_check.h"
#include "accelerate/config/derive.h"
#include "accelerate/config/excerpt.h"
#include "accelerate/config/placeholder.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using detail::RawNode;

// How else to give a value of this key.
std::string other_ways(const KeyRow& row) {
  std::string out = concat("Write the value itself, or leave the key out and pass --", row.flag_name());
  if (!row.environment.empty()) out += concat(" or set ", words_of(row.environment).front());
  return out + ".";
}

// Merges the sources from the lowest precedence to the highest.
class Merger {
 public:
  explicit Merger(const ConfigSources& sources) : sources_(sources) {
    config_.machine = sources.machine ? *sources.machine : detect_machine(sources.environment);
    config_.allow_unknown_keys = sources.allow_unknown_keys;
    const auto from_variable = sources.environment.get_bool("ACCELERATE_ALLOW_UNKNOWN_KEYS");
    if (from_variable && *from_variable) config_.allow_unknown_keys = true;
  }

  InspectedConfig run() {
    if (sources_.file) {
      config_.file = sources_.file->string();
      const RawNode root = detail::read_config_file(config_.file);
      if (detail::is_deepspeed_map(root)) refuse_deepspeed_file();
      take_map(root, {});
    }
    take_environment();
    for (const Override& given : sources_.command_line) take_override(given, Origin::kCommandLine);
    for (const Override& given : sources_.code) take_override(given, Origin::kCode);
    finish();
    return {std::move(config_), std::move(problems_)};
  }

 private:
  [[noreturn]] void refuse_deepspeed_file() const {
    throw ConfigError(
        {.what = concat(config_.file, ": is DeepSpeed's own JSON file and no configuration"),
         .hint = concat("Name it in one: distributed_type: DEEPSPEED, and below deepspeed_config: "
                        "deepspeed_config_file: ",
                        config_.file)});
  }

  ValueOrigin at(int line) const { return {Origin::kFile, config_.file, line}; }

  void error(std::string_view key, const std::string& what, const std::string& hint,
             const ValueOrigin& where) {
    problems_.push_back({Severity::kError, ProblemKind::kContent, std::string(key), what, hint, where});
  }
  void warn(std::string_view key, const std::string& what, const std::string& hint,
            const ValueOrigin& where) {
    problems_.push_back({Severity::kWarning, ProblemKind::kContent, std::string(key), what, hint, where});
  }

  // What is wrong with a value, unless one of higher precedence makes that unimportant.
  void bad_value(const KeyRow& row, const std::string& what, const std::string& hint,
                 const ValueOrigin& where) {
    bad_values_[std::string(row.name)] = {
        Severity::kError, ProblemKind::kContent, std::string(row.name), what, hint, where};
  }

  void take_map(const RawNode& map, std::string_view block) {
    for (const auto& entry : map.entries) {
      const std::string shown = entry.key.empty() ? "''" : detail::excerpt(entry.key);
      const std::string path = block.empty() ? shown : concat(block, ".", shown);
      const KeyRow* row = find_key_in_file(block, entry.key);
      if (row == nullptr) {
        unknown_key(block, entry.key, path, at(entry.line));
      } else if (row->support == Support::kForeign) {
        foreign_key(*row, entry);
      } else {
        check_duplicate(*row, entry);
        check_old_name(*row, entry);
        take_entry(*row, entry);
      }
    }
  }

  void unknown_key(std::string_view block, const std::string& key, const std::string& path,
                   const ValueOrigin& where) {
    std::string hint;
    // Thousands of unknown keys are no slips of the pen, and each search takes a while.
    if (++unknown_count_ > kMostUnknown) {
      if (unknown_count_ == kMostUnknown + 1) first_unnamed_ = where;
      return;
    }
    const auto near = nearest_key(block, key);
    if (near) hint = concat("Did you mean ", *near, "?");
    if (!near) hint = where_it_belongs(block, key);
    if (config_.allow_unknown_keys) return warn(path, "unknown key, left out", hint, where);
    error(path, "unknown key", hint, where);
    last_unknown_ = problems_.size();
  }

  static std::string where_it_belongs(std::string_view block, const std::string& key) {
    if (block == "deepspeed_config") {
      return "Keys and sections of DeepSpeed's own file go into a JSON file named by deepspeed_config_file.";
    }
    const KeyRow* owner = block.empty() ? block_of_prefix(key) : nullptr;
    if (owner != nullptr) {
      return concat("Such keys stand indented below ", owner->name, "; 'accel config keys' lists them.");
    }
    return block.empty() ? std::string() : "'accel config keys' lists the keys.";
  }

  void foreign_key(const KeyRow& row, const RawNode::Entry& entry) {
    if (row.moved_to.empty()) {
      foreign_.push_back({Severity::kWarning, ProblemKind::kContent, std::string(row.name), "key is ignored",
                          concat(row.help, "."), at(entry.line)});
      return;
    }
    const KeyRow& target = *find_row(row.moved_to);
    warn(row.name, concat("key of an old release; today's is ", target.name),
         concat("'accel config update ", shell_quote(config_.file), "' rewrites the file."), at(entry.line));
    if (entry.value.kind != RawNode::Kind::kScalar || config_.given(target.name)) return;
    RawNode value = entry.value;
    const auto truth = parse_bool(value.text);
    for (const std::string& pair : words_of(row.old_values)) {
      const size_t equals = pair.find('=');
      if (truth && pair.substr(0, equals) == (*truth ? "true" : "false"))
        value.text = pair.substr(equals + 1);
    }
    take_scalar(target, value, at(entry.line), concat("(from ", row.name, ") "));
  }

  void check_duplicate(const KeyRow& row, const RawNode::Entry& entry) {
    const auto [before, first] = seen_.try_emplace(std::string(row.name), &entry);
    if (first) return;
    const RawNode::Entry& other = *before->second;
    const bool same = other.value.kind == entry.value.kind && other.value.text == entry.value.text &&
                      other.value.entries.empty() && entry.value.entries.empty() &&
                      other.value.items.empty() && entry.value.items.empty();
    const std::string what = other.line == entry.line
                                 ? concat("key is given twice, in line ", entry.line)
                                 : concat("key is given twice, in lines ", other.line, " and ", entry.line);
    if (same) {
      warn(row.name, what + ", with the same value", {}, at(entry.line));
    } else {
      error(row.name, what, "Keep one of them.", at(entry.line));
    }
    before->second = &entry;
  }

  void check_old_name(const KeyRow& row, const RawNode::Entry& entry) {
    const auto old_names = words_of(row.old_names);
    if (entry.key == row.leaf() ||
        std::find(old_names.begin(), old_names.end(), entry.key) == old_names.end()) {
      return;
    }
    warn(row.name, concat("'", entry.key, "' is an old name of this key"),
         concat("'accel config update ", shell_quote(config_.file), "' rewrites the file."), at(entry.line));
  }

  void take_entry(const KeyRow& row, const RawNode::Entry& entry) {
    const RawNode& value = entry.value;
    const bool empty = value.kind == RawNode::Kind::kNull ||
                       (value.kind == RawNode::Kind::kScalar && is_nothing(row, trim(value.text)));
    if (empty) {
      config_.nulls[std::string(row.name)] = at(entry.line);
      return;
    }
    if (row.type == ValueType::kBlock) {
      if (value.kind == RawNode::Kind::kMap) {
        if (!value.entries.empty()) config_.origins[std::string(row.name)] = at(entry.line);
        return take_map(value, row.name);
      }
      const std::string got = value.kind == RawNode::Kind::kList
                                  ? std::string("a list (lines with '-')")
                                  : concat("'", detail::excerpt(value.text), "'");
      return error(row.name, concat("expected ", expected_text(row), ", got ", got), {}, at(entry.line));
    }
    switch (value.kind) {
      case RawNode::Kind::kScalar:
        return take_scalar(row, value, at(entry.line), {});
      case RawNode::Kind::kList:
        return take_list(row, value, at(entry.line));
      default:
        return bad_value(row, concat("expected ", expected_text(row), ", got a block of keys"), {},
                         at(entry.line));
    }
  }

  // Python's word for nothing is a text to YAML, and HF Accelerate takes it for "not given" too.
  static bool is_nothing(const KeyRow& row, const std::string& text) {
    return text.empty() || (row.type == ValueType::kText && to_lower(text) == "none");
  }

  void take_list(const KeyRow& row, const RawNode& list, const ValueOrigin& where) {
    std::vector<std::string> items;
    for (const RawNode& item : list.items) {
      if (item.kind != RawNode::Kind::kScalar) {
        return bad_value(row, concat("expected ", expected_text(row), ", got nested values"), {}, where);
      }
      items.push_back(item.text);
    }
    const bool takes_lists =
        row.type == ValueType::kList || row.type == ValueType::kText || row.type == ValueType::kGpuIds;
    if (!takes_lists)
      return bad_value(row, concat("expected ", expected_text(row), ", got a list"), {}, where);
    if (row.type == ValueType::kList) {
      // Not through text: a command may hold commas.
      *std::get<std::optional<std::vector<std::string>>*>(row.slot(config_)) = std::move(items);
      config_.origins[std::string(row.name)] = where;
      return;
    }
    take_text(row, join(items, ","), where, {});
  }

  void take_scalar(const KeyRow& row, const RawNode& value, const ValueOrigin& where,
                   const std::string& note) {
    if (support_of(row) != Support::kNoEffect && detail::is_placeholder(value.text)) {
      return bad_value(row,
                       concat(note, "'", value.text,
                              "' is a placeholder; variables are not expanded in configuration files"),
                       other_ways(row), where);
    }
    if (row.type == ValueType::kInt && !value.quoted && is_octal(trim(value.text))) {
      return bad_value(row,
                       concat(note, "'", trim(value.text), "' begins with 0 and is ",
                              std::stoll(trim(value.text), nullptr, 8), " to other readers of YAML"),
                       "Write the number without the 0.", where);
    }
    take_text(row, value.text, where, note);
  }

  // A whole number that YAML 1.1 reads in base 8, and that is another one in base 10.
  static bool is_octal(const std::string& text) {
    return text.size() > 2 && text.size() < 20 && text.front() == '0' &&
           text.find_first_not_of("01234567") == std::string::npos &&
           text.find_first_not_of('0') < text.size() - 1;
  }

  void take_text(const KeyRow& row, const std::string& text, const ValueOrigin& where,
                 const std::string& note) {
    const std::string key(row.name);
    bad_values_.erase(key);
    std::erase_if(value_warnings_, [&](const Problem& problem) { return problem.key == key; });
    const SetResult result = set_value(config_, row, text);
    if (!result.error.empty()) {
      const std::string word = to_lower(trim(text));
      const bool none = word == "none" || word == "null" || word == "nil";
      return bad_value(row, note + result.error,
                       none ? "For no value, write null or leave the key out." : hint_for(row, word), where);
    }
    if (!result.warning.empty()) {
      value_warnings_.push_back(
          {Severity::kWarning, ProblemKind::kContent, key, note + result.warning, {}, where});
    }
    config_.origins[key] = where;
    config_.nulls.erase(key);
  }

  // What the makers of other tools call a value.
  static std::string hint_for(const KeyRow& row, const std::string& word) {
    if (row.name == "compute_environment") {
      return "Write LOCAL_MACHINE, also for several machines (num_machines) and under Slurm.";
    }
    if (row.name == "mixed_precision") {
      if (word == "bfloat16") return "Write bf16.";
      if (word == "float16" || word == "half") return "Write fp16.";
      if (word == "fp32" || word == "float32" || word == "full") return "Full precision is no.";
    }
    if (row.name == "distributed_type" && (word == "ddp" || word == "data_parallel")) {
      return "Data parallel is MULTI_GPU, or MULTI_CPU.";
    }
    return {};
  }

  // A block's variable or flag ("use_fsdp") asks for what the block configures.
  void take_switch(const KeyRow& block, const std::string& text, const ValueOrigin& where) {
    const auto value = parse_bool(text);
    if (!value)
      return error(block.name, concat("expected true or false, got '", detail::excerpt(text), "'"), {},
                   where);
    if (!*value) return;
    config_.origins[std::string(block.name)] = where;
    const KeyRow& type = *find_row("distributed_type");
    const auto types = words_of(type.allowed);
    if (std::find(types.begin(), types.end(), block.used_with) == types.end()) return;
    if (config_.origin_of(type.name).origin < where.origin)
      take_text(type, std::string(block.used_with), where, {});
  }

  void take_environment() {
    for (const KeyRow& row : schema()) {
      for (const std::string& name : words_of(row.environment)) {
        const auto text = sources_.environment.get(name);
        if (!text) continue;
        const ValueOrigin where{Origin::kEnvironment, name, 0};
        if (row.type == ValueType::kBlock) {
          take_switch(row, *text, where);
        } else {
          take_text(row, *text, where, {});
        }
        break;
      }
    }
  }

  void take_override(const Override& given, Origin origin) {
    const KeyRow* row = find_key(given.key);
    if (row == nullptr) {
      const auto near = nearest_key({}, given.key);
      return error(given.key, "unknown key", near ? concat("Did you mean ", *near, "?") : std::string(),
                   {origin, given.key, 0});
    }
    std::string shown = origin == Origin::kCommandLine ? "--" + row->flag_name() : std::string(row->leaf());
    if (!given.shown.empty()) shown = given.shown;
    const ValueOrigin where{origin, shown, 0};
    if (row->type == ValueType::kBlock) return take_switch(*row, given.text, where);
    if (!trim(given.text).empty()) take_text(*row, given.text, where, {});
  }

  void finish() {
    if (unknown_count_ > kMostUnknown) {
      const std::string what = concat(unknown_count_ - kMostUnknown, " more unknown keys from here on");
      config_.allow_unknown_keys ? warn({}, what, {}, first_unnamed_) : error({}, what, {}, first_unnamed_);
    }
    // One mention is enough for all of them.
    if (last_unknown_ > 0) {
      std::string& hint = problems_[last_unknown_ - 1].hint;
      hint = trim(hint + " To go on without unknown keys, set ACCELERATE_ALLOW_UNKNOWN_KEYS=true.");
    }
    if (config_.compute_environment == "LOCAL_MACHINE") {
      problems_.insert(problems_.end(), foreign_.begin(), foreign_.end());
    }
    problems_.insert(problems_.end(), value_warnings_.begin(), value_warnings_.end());
    for (auto& [key, problem] : bad_values_) problems_.push_back(std::move(problem));
    detail::derive(config_, problems_);
    // In the file's order; a wrong environment first, since it makes other keys look wrong.
    std::stable_sort(problems_.begin(), problems_.end(), [](const Problem& a, const Problem& b) {
      const bool first_a = a.key == "compute_environment";
      const bool first_b = b.key == "compute_environment";
      if (first_a != first_b) return first_a;
      return a.where.line < b.where.line;
    });
    for (const Problem& problem : problems_) {
      if (problem.severity == Severity::kWarning) config_.load_warnings.push_back(problem);
    }
  }

  static constexpr int kMostUnknown = 25;  ///< named one by one; fewer than throw_if_errors() lists

  const ConfigSources& sources_;
  Config config_;
  int unknown_count_ = 0;
  ValueOrigin first_unnamed_;  ///< of the unknown keys beyond kMostUnknown
  size_t last_unknown_ = 0;    ///< place of the last unknown key in problems_, plus one
  std::vector<Problem> problems_;
  std::vector<Problem> foreign_;
  std::vector<Problem> value_warnings_;
  std::map<std::string, Problem> bad_values_;
  std::map<std::string, const RawNode::Entry*> seen_;
};

}  // namespace

ValueOrigin Config::origin_of(std::string_view key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? ValueOrigin{} : found->second;
}

InspectedConfig inspect_config(const ConfigSources& sources) {
  return Merger(sources).run();
}

Config load_config(const ConfigSources& sources) {
  InspectedConfig read = inspect_config(sources);
  throw_if_errors(read.problems);
  return std::move(read.config);
}

void throw_if_errors(const std::vector<Problem>& problems) {
  std::vector<std::string> lines;
  for (const Problem& problem : problems) {
    if (problem.severity == Severity::kError) lines.push_back(describe(problem));
  }
  if (lines.empty()) return;
  const size_t count = lines.size();
  constexpr size_t kMostLines = 30;
  if (count > kMostLines) {
    lines.resize(kMostLines);
    lines.push_back(concat("and ", count - kMostLines, " more"));
  }
  std::string what = lines.front();
  if (lines.size() > 1) what = concat(count, " problems in the configuration:\n  ", join(lines, "\n  "));
  throw ConfigError({.what = what, .expected = {}, .got = {}, .hint = {}});
}

}  // namespace accelerate
