#include "launcher/launch_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/flag_checks.h"

namespace accelerate::cli {
namespace {

constexpr const char* kJob = "Job";
constexpr const char* kMachines = "Several machines";
constexpr const char* kProgram = "Starting and stopping";
constexpr const char* kOutput = "Output";
constexpr const char* kNoEffect = "";  // CLI11 leaves an empty group out of the help

// HF Accelerate's boolean flags stand alone at the top level and take a value inside most blocks.
bool stands_alone(const KeyRow& row) {
  if (row.type == ValueType::kBlock) return true;
  return row.type == ValueType::kBool && (row.block().empty() || row.block() == "dynamo_config");
}

std::string group_of(const KeyRow& row) {
  const Support support = support_of(row);
  if (support == Support::kWorks) return row.block() == "mpirun_config" ? kMachines : kJob;
  return kNoEffect;
}

std::string help_of(const KeyRow& row) {
  std::string out(row.help);
  if (row.type == ValueType::kWord && !row.allowed.empty())
    out += concat(" (", join(words_of(row.allowed), ", "), ")");
  if (!row.default_text.empty() && !stands_alone(row)) out += concat(" [", row.default_text, "]");
  return out;
}

// As torchrun's: a mask for all ranks.
int parse_streams(const std::string& flag, const std::string& text) {
  const auto mask = parse_int(text);
  if (mask && *mask >= 0 && *mask <= 3) return static_cast<int>(*mask);
  throw ConfigError({.what = flag.substr(flag.find(',') + 1),
                     .expected = "0 (neither), 1 (standard output), 2 (standard error) or 3 (both)",
                     .got = concat("'", text, "'"),
                     .hint = text.find(':') == std::string::npos ? "" : "One mask holds for all ranks."});
}

}  // namespace

std::optional<std::pair<int, int>> parse_machine_range(const std::string& text) {
  constexpr int64_t kMost = 100000;
  const size_t colon = text.find(':');
  const auto most = parse_int(colon == std::string::npos ? text : text.substr(colon + 1));
  const auto least = parse_int(text.substr(0, colon));
  if (!most || !least || *least < 1 || *most < *least || *most > kMost) return std::nullopt;
  return std::pair(static_cast<int>(*least), static_cast<int>(*most));
}

LaunchFlagSet::LaunchFlagSet(CLI::App& command) {
  add_own(command);
  add_output(command);
  add_without_effect(command);
  add_machines(command);
  add_schema(command);
}

void LaunchFlagSet::add_own(CLI::App& command) {
  command.add_option("--config_file", flags_.config_file, "Configuration file (YAML or JSON)")
      ->type_name("FILE")
      ->group(kJob);
  command.add_flag("--multi_gpu", multi_gpu_, "One process a CUDA device")->group(kJob);
  command.add_flag("--tpu", tpu_, "TPU through XLA")->group(kNoEffect);

  command
      .add_option("--num_cpu_threads_per_process", flags_.threads_per_process,
                  "OMP_NUM_THREADS of each process [cores / processes]")
      ->check(integer_from(1))
      ->type_name("")
      ->group(kProgram);
  command.add_option("--env", flags_.env, "Set a variable in every process; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(kProgram);
  command
      .add_option_function<int>(
          "--max_restarts", [this](int count) { flags_.max_restarts = count; },
          "Start all processes afresh after a failure [0]")
      ->check(integer_from(0))
      ->type_name("")
      ->group(kProgram);
  command
      .add_option("--grace_period", flags_.grace_period_s,
                  "From asking processes to stop to killing them [5]")
      ->check(seconds_from(0, 86400))
      ->type_name("SECONDS")
      ->group(kProgram);
  command
      .add_option("--cxxflags", flags_.cxx_flags,
                  "For a program given as source (train.cpp): flags of the compiler, after $CXXFLAGS; the 32 "
                  "programs used last are kept, up to 1 GiB")
      ->type_name("FLAGS")
      ->group(kProgram);
  command.add_flag("--dry_run", flags_.dry_run, "Print what would be started, with the origin of each value")
      ->group(kProgram);
  // What it asks for is what we do.
  command.add_flag("--no_python", no_python_)->group(kNoEffect);
}

// Flags of HF Accelerate's launcher and torchrun that have nothing to act on here.
void LaunchFlagSet::add_without_effect(CLI::App& command) {
  const std::pair<const char*, const char*> flags[] = {
      {"--monitor_interval", "the end of a process is noticed at once"},
      {"--role", "processes of one job have no roles"},
      {"--mpirun_ccl", "Intel's oneCCL is not used here"}};
  for (const auto& [name, why] : flags)
    without_effect_.push_back({command.add_option(name, ignored_)->group(kNoEffect), why});
}

void LaunchFlagSet::add_output(CLI::App& command) {
  command.add_option("--log_dir", flags_.log_dir, "Write each process's output to rank_N.log there")
      ->type_name("FOLDER")
      ->group(kOutput);
  const auto streams = [&](const char* name, int& value, const char* help) {
    command
        .add_option_function<std::string>(
            name, [name, &value](const std::string& text) { value = parse_streams(name, text); }, help)
        ->type_name(kStreams)
        ->group(kOutput);
  };
  streams("-t,--tee", flags_.tee,
          "With --log_dir: show the output as well; 1 standard output, 2 error, nothing or 3 both");
  streams("-r,--redirects", flags_.redirects, "With --log_dir: which streams go there alone [3]");
  command.add_flag("--no_prefix", flags_.no_prefix, "No \"[rank N] \" before the lines")->group(kOutput);
  command.add_flag("-q,--quiet", flags_.quiet, "No lines of the launcher but errors")->group(kOutput);
}

void LaunchFlagSet::add_machines(CLI::App& command) {
  const auto seconds = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)
        ->check(seconds_from(0.05, 86400))
        ->type_name("SECONDS")
        ->group(kMachines);
  };
  command
      .add_option("--nnodes", flags_.nnodes,
                  "Machines that number themselves by arrival; with MIN the job goes on when some are lost")
      ->type_name("[MIN:]MAX")
      ->group(kMachines);
  command
      .add_option("--nproc_per_node", flags_.nproc_per_node, "With --nnodes: processes of each machine [1]")
      ->check(integer_from(1))
      ->type_name("N")
      ->group(kMachines);
  command
      .add_option("--rdzv_id", flags_.rdzv_id,
                  "Name of the job, the same on all machines; strangers are refused")
      ->envname("ACCELERATE_RDZV_ID")
      ->type_name("TEXT")
      ->group(kMachines);
  add_rdzv_conf(command);
  seconds("--connect_timeout", flags_.connect_timeout_s, "How long machines wait for one another [300]");
  seconds("--heartbeat_timeout", flags_.heartbeat_timeout_s,
          "Silence after which a machine is lost; that of machine 0 holds for all [5]");
  seconds("--last_call", flags_.last_call_s, "How long a job that could start with fewer machines waits [3]");
}

// torchrun's "join_timeout=600,last_call_timeout=30", of which some are flags of ours.
void LaunchFlagSet::add_rdzv_conf(CLI::App& command) {
  command
      .add_option_function<std::string>("--rdzv_conf",
                                        [this](const std::string& text) { take_rdzv_conf(text); })
      ->group(kNoEffect);
}

void LaunchFlagSet::take_rdzv_conf(const std::string& text) {
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = trim(part.substr(0, equals));
    const auto value = equals == std::string::npos ? std::nullopt : parse_double(part.substr(equals + 1));
    if (key.empty() || equals == std::string::npos)
      throw ConfigError({.what = "--rdzv_conf", .expected = "KEY=VALUE,...", .got = concat("'", text, "'")});
    const bool joins = key == "timeout" || key == "join_timeout";
    const bool waits = key == "last_call_timeout";
    if ((joins || waits) && !(value && *value > 0)) {
      throw ConfigError({.what = concat("--rdzv_conf ", key),
                         .expected = "a number of seconds",
                         .got = concat("'", part.substr(equals + 1), "'")});
    }
    if (joins) {
      flags_.connect_timeout_s = *value;
    } else if (waits) {
      flags_.last_call_s = *value;
    } else if (key != "rank" && key != "is_host") {
      notices_.push_back(
          concat("--rdzv_conf ", key, " has no effect: known are join_timeout and last_call_timeout"));
    }
  }
}

void LaunchFlagSet::override_machines(std::vector<Override>& out, bool machines_known) const {
  if (flags_.nnodes.empty()) {
    if (flags_.nproc_per_node == 0 || machines_known) return;
    throw ConfigError({.what = "--nproc_per_node is for --nnodes",
                       .hint = "Give --num_processes, those of all machines together."});
  }
  for (const Key& key : keys_) {
    const bool contradicts = key.name == "num_machines" || key.name == "num_processes" ||
                             key.name == "rdzv_backend" || key.name == "machine_rank";
    if (!contradicts || key.option->count() == 0) continue;
    throw ConfigError({.what = concat("--nnodes and --", key.name, " exclude one another"),
                       .hint = "With --nnodes, give --nproc_per_node; machines number themselves."});
  }
  const int most = machine_range().second;
  const int processes = most * std::max(1, flags_.nproc_per_node);
  const char* const nnodes = "--nnodes";
  out.push_back({"num_machines", std::to_string(most), nnodes});
  out.push_back(
      {"num_processes", std::to_string(processes), flags_.nproc_per_node > 0 ? "--nproc_per_node" : nnodes});
  out.push_back({"rdzv_backend", "c10d", nnodes});
}

std::pair<int, int> LaunchFlagSet::machine_range() const {
  if (const auto range = parse_machine_range(flags_.nnodes)) return *range;
  throw ConfigError({.what = "--nnodes",
                     .expected = "MIN:MAX or a number, such as 2:4",
                     .got = concat("'", flags_.nnodes, "'")});
}

bool LaunchFlagSet::says_machines() const {
  return !flags_.nnodes.empty() || std::any_of(keys_.begin(), keys_.end(), [](const Key& key) {
    return key.name == "num_machines" && key.option->count() > 0;
  });
}

std::vector<std::string> LaunchFlagSet::notices() const {
  std::vector<std::string> out = notices_;
  const auto none = [&out](const std::string& flag, const std::string& why) {
    out.push_back(concat(flag, " has no effect: ", why));
  };
  for (const WithoutEffect& flag : without_effect_) {
    if (flag.option->count() > 0) none("--" + flag.option->get_lnames().front(), flag.why);
  }
  for (const Key& key : keys_) {
    if (key.name == "same_network" && key.option->count() > 0)
      none("--same_network", "machines find one another at main_process_ip in any network");
  }
  if (flags_.tee > 0 && flags_.log_dir.empty()) none("--tee", "without --log_dir everything is shown");
  return out;
}

void LaunchFlagSet::add_schema(CLI::App& command) {
  for (const KeyRow& row : schema()) {
    const bool settable = row.slot != nullptr || row.type == ValueType::kBlock;
    const std::string name = "--" + row.flag_name();
    // Where two keys share a flag, the first in the schema has it.
    if (!settable || row.support == Support::kForeign || command.get_option_no_throw(name) != nullptr)
      continue;
    if (row.type == ValueType::kBlock && row.flag.empty()) continue;
    Key& key = keys_.emplace_back(Key{std::string(row.name), {}, nullptr});
    if (stands_alone(row)) {
      key.option = command.add_flag(name, key.text, help_of(row));
    } else {
      key.option = command.add_option(name, key.text, help_of(row));
      key.option->type_name(row.type == ValueType::kInt ? "N" : "TEXT");
    }
    key.option->group(group_of(row));
  }
}

std::vector<Override> LaunchFlagSet::overrides(bool machines_known) const {
  std::vector<Override> out;
  if (multi_gpu_) out.push_back({"distributed_type", "MULTI_GPU", "--multi_gpu"});
  if (tpu_) out.push_back({"distributed_type", "XLA", "--tpu"});
  for (const Key& key : keys_) {
    if (key.option->count() > 0) out.push_back({key.name, key.text});
  }
  override_machines(out, machines_known);
  return out;
}

std::vector<std::pair<std::string, std::string>> LaunchFlagSet::environment() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& entry : flags_.env) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw ConfigError({.what = "--env", .expected = "KEY=VALUE", .got = concat("'", entry, "'")});
    }
    out.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return out;
}

}  // namespace accelerate::cli
