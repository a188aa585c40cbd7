#include <algorithm>
#include <filesystem>

#include "accelerate/config/deepspeed_check.h"
#include "accelerate/config/load.h"
#include "accelerate/config/schema.h"
#include "accelerate/config/validate_counts.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using detail::Report;

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Variables may be meant for other jobs; what stands in the file, on the command line or in code is not.
bool meant_for_this_job(Origin origin) {
  return origin == Origin::kFile || origin == Origin::kCommandLine || origin == Origin::kCode;
}

bool typed(const Config& config, const KeyRow& row) {
  const Origin origin = config.origin_of(row.name).origin;
  return origin == Origin::kCommandLine || origin == Origin::kCode;
}

// A value that asks for something: HF Accelerate writes the others into every file.
bool says_something(const Config& config, const KeyRow& row) {
  const std::string text = value_text(config, row).value_or("");
  return !text.empty() && text != "false" && text != row.default_text;
}

// Keys of a block that somebody gave, the block's own switch included.
std::vector<const KeyRow*> given_in(const Config& config, const KeyRow& block) {
  std::vector<const KeyRow*> out;
  for (const KeyRow& row : schema()) {
    if (row.block() == block.name && config.given(row.name)) out.push_back(&row);
  }
  return out;
}

bool is_used(const Config& config, const KeyRow& block) {
  return block.used_with == to_string(config.distributed_type) ||
         block.used_with == to_string(config.mixed_precision);
}

// True where this release has what the value of one of the two choosing keys asks for.
bool works(const KeyRow& row, std::string_view text) {
  return row.works.empty() || contains(words_of(row.works), text);
}

void check_values(const Config& config, ValidateFor purpose, Report& report) {
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr || !row.block().empty()) continue;
    const auto text = value_text(config, row);
    if (!text) continue;
    if (row.support == Support::kNotYet && *text != row.default_text) {
      report.unsupported(row.name, concat("not supported yet: ", row.name, " ", *text), {});
    }
    if (row.support != Support::kWorks || works(row, *text)) continue;
    if (row.name == "rdzv_backend" && purpose == ValidateFor::kRank) continue;
    std::string hint = concat("Supported today: ", join(words_of(row.works), ", "), ".");
    if (row.name == "compute_environment") hint = "Start the job on the machine itself, with LOCAL_MACHINE.";
    report.unsupported(row.name, concat("not supported yet: ", row.name, " ", *text), hint);
  }
}

// A block that is there and has no part in what was asked for; people believe that it has.
void check_unused_block(const Config& config, const KeyRow& block, Report& report) {
  const auto given = given_in(config, block);
  const bool by_precision = contains(words_of(find_row("mixed_precision")->allowed), block.used_with);
  const std::string under = by_precision ? concat("mixed_precision ", to_string(config.mixed_precision))
                                         : std::string(to_string(config.distributed_type));
  const std::string hint = concat("It is used with ", by_precision ? "mixed_precision " : "distributed_type ",
                                  block.used_with, ".");
  const bool in_file = std::any_of(given.begin(), given.end(), [&](const KeyRow* row) {
    return config.origin_of(row->name).origin == Origin::kFile;
  });
  if (in_file || meant_for_this_job(config.origin_of(block.name).origin)) {
    report.warn(block.name, concat("ignored under ", under), hint);
  }
  for (const KeyRow* row : given) {
    if (typed(config, *row)) report.warn(row->name, concat("has no effect under ", under), hint);
  }
}

void check_blocks(const Config& config, Report& report) {
  for (const KeyRow& block : schema()) {
    if (block.type != ValueType::kBlock || block.used_with.empty()) continue;
    if (!is_used(config, block)) {
      check_unused_block(config, block, report);
      continue;
    }
    if (block.support != Support::kNotYet) continue;
    const bool refused_already = !works(*find_row("distributed_type"), to_string(config.distributed_type)) ||
                                 !works(*find_row("mixed_precision"), block.used_with);
    for (const KeyRow* row : given_in(config, block)) {
      const std::string text = value_text(config, *row).value_or("");
      if (!refused_already) {
        report.unsupported(row->name, concat("not supported yet: ", row->name, " ", text), {});
      }
      if (row->needs.empty() || text == "none" || text == "false") continue;
      const size_t equals = row->needs.find('=');
      const KeyRow& other = *find_row(row->needs.substr(0, equals));
      const std::string have = value_text(config, other).value_or(std::string(other.default_text));
      if (have == row->needs.substr(equals + 1)) continue;
      report.warn(row->name, concat("has no effect with ", other.leaf(), " ", have),
                  concat("It needs ", other.leaf(), " ", row->needs.substr(equals + 1), "."));
    }
  }
}

void check_parallelism(const Config& config, Report& report) {
  const KeyRow& block = *find_row("parallelism_config");
  std::string asked;
  for (const KeyRow* row : given_in(config, block)) {
    const auto size = row->leaf().ends_with("_size") ? value_text(config, *row) : std::nullopt;
    if (!size || *size == "1") continue;
    if (!asked.empty()) asked += ", ";
    asked += concat(row->leaf().substr(block.prefix.size()), " ", *size);
  }
  const Origin origin = config.origin_of(block.name).origin;
  if (asked.empty() && origin <= Origin::kFile) {
    for (const KeyRow* row : given_in(config, block)) {
      if (!typed(config, *row) || row->leaf().ends_with("_size")) continue;
      report.warn(row->name, "has no effect: no size above 1 is asked for", {});
    }
    return;
  }
  report.unsupported(
      block.name,
      concat("not supported yet: parallelism_config", asked.empty() ? "" : concat(" (", asked, ")")), {});
}

void check_compiler(const Config& config, Report& report) {
  constexpr std::string_view kBackend = "dynamo_config.dynamo_backend";
  const std::string backend = config.dynamo.backend.value_or("no");
  if (backend != "no") {
    report.warn(kBackend, concat(backend, " is ignored: C++ has no torch.compile"),
                "Results are the same without it.");
  }
  for (const KeyRow* row : given_in(config, *find_row("dynamo_config"))) {
    if (row->name == kBackend || !typed(config, *row) || !says_something(config, *row)) continue;
    report.warn(row->name, "has no effect: C++ has no torch.compile", {});
  }
}

// Keys at the top that mean nothing here. `same_network` holds for any network, and is no wish.
void check_without_effect(const Config& config, Report& report) {
  for (const KeyRow& row : schema()) {
    if (row.support != Support::kNoEffect || row.slot == nullptr || row.name == "same_network") continue;
    if (!meant_for_this_job(config.origin_of(row.name).origin)) continue;
    if (!typed(config, row) && !says_something(config, row)) continue;
    report.warn(row.name, "has no effect: it is for TPU pods, which are not supported", {});
  }
}

void check_deepspeed_file(const Config& config, ValidateFor purpose, Report& report) {
  if (config.distributed_type != DistributedType::kDeepSpeed || !config.deepspeed.config_file) return;
  constexpr std::string_view kKey = "deepspeed_config.deepspeed_config_file";
  const std::string& file = *config.deepspeed.config_file;
  // A rank's job has the size that its launcher says.
  const auto processes = purpose == ValidateFor::kRank ? std::nullopt : config.num_processes;
  InspectedDeepSpeedFile found;
  try {
    found = inspect_deepspeed_file(file, {processes, config.allow_unknown_keys});
  } catch (const ConfigError& unreadable) {
    return report.machine(Severity::kError, kKey, unreadable.what(), {});
  }
  report.take(found.problems);
  for (const detail::DeepSpeedConflict& conflict : detail::find_conflicts(config, found.file)) {
    report.error(conflict.key, concat("is ", conflict.value, ", but ", file, " says ", conflict.in_file),
                 concat("The file decides: leave the key out, or write \"auto\" there."));
  }
}

// Of the machine that mpirun will be started on, which may be another one.
void check_hostfile(const Config& config, Report& report) {
  if (!uses_mpirun(config) || !config.mpirun.hostfile) return;
  const std::string& file = *config.mpirun.hostfile;
  std::error_code ignored;
  // Whose home folder '~' will be is not known here.
  if (file.starts_with("~") || std::filesystem::exists(file, ignored)) return;
  report.machine(Severity::kWarning, "mpirun_config.mpirun_hostfile",
                 concat(shell_quote(file), " does not exist on this machine"),
                 "A relative path starts at the folder that the job is started in.");
}

// A file named for one way of running that says NO is rarely what was meant.
void check_file_name(const Config& config, Report& report) {
  if (config.distributed_type != DistributedType::kNo || config.file.empty()) return;
  const std::string name = to_lower(std::filesystem::path(config.file).stem().string());
  for (std::string_view word : {"fsdp", "deepspeed", "megatron", "multi_gpu", "multi_cpu"}) {
    if (name.find(word) == std::string::npos) continue;
    report.warn("distributed_type", concat("is NO, though the file is called ", shell_quote(name)), {});
    return;
  }
}

}  // namespace

namespace detail {

void Report::add(Severity severity, ProblemKind kind, std::string_view key, std::string what,
                 std::string hint) {
  ValueOrigin where = config_.origin_of(key);
  if (where.origin == Origin::kDefault && !config_.file.empty()) {
    // What is missing is missing in the file; a null stands somewhere in it.
    const auto null = config_.nulls.find(key);
    where = null != config_.nulls.end() ? null->second : ValueOrigin{Origin::kFile, config_.file, 0};
  }
  problems_.push_back({severity, kind, std::string(key), std::move(what), std::move(hint), std::move(where)});
}

}  // namespace detail

std::vector<Problem> validate(const Config& config, ValidateFor purpose) {
  std::vector<Problem> problems = config.load_warnings;
  Report report(config, problems);
  check_values(config, purpose, report);
  check_blocks(config, report);
  check_parallelism(config, report);
  check_compiler(config, report);
  check_deepspeed_file(config, purpose, report);
  if (purpose != ValidateFor::kRank) {
    check_without_effect(config, report);
    check_file_name(config, report);
    detail::check_counts(config, purpose, report);
    detail::check_machine(config, purpose, report);
    check_hostfile(config, report);
  }
  return problems;
}

}  // namespace accelerate
