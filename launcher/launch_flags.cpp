#include "launcher/launch_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

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
  if (support == Support::kWorks) return row.block().empty() ? kJob : std::string(row.block());
  return kNoEffect;
}

std::string help_of(const KeyRow& row) {
  std::string out(row.help);
  if (row.type == ValueType::kWord && !row.allowed.empty())
    out += concat(" (", join(words_of(row.allowed), ", "), ")");
  if (!row.default_text.empty() && !stands_alone(row)) out += concat(" [", row.default_text, "]");
  return out;
}

}  // namespace

LaunchFlagSet::LaunchFlagSet(CLI::App& command) {
  add_own(command);
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
      ->check(CLI::PositiveNumber)
      ->type_name("")
      ->group(kProgram);
  command.add_option("--env", flags_.env, "Set a variable in every process; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(kProgram);
  command.add_option("--max_restarts", flags_.max_restarts, "Start all processes afresh after a failure [0]")
      ->check(CLI::NonNegativeNumber)
      ->type_name("")
      ->group(kProgram);
  command
      .add_option("--grace_period", flags_.grace_period_s,
                  "From asking processes to stop to killing them [5]")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("SECONDS")
      ->group(kProgram);
  command
      .add_option("--cxxflags", flags_.cxx_flags,
                  "For a program given as source (train.cpp): flags of the compiler, after $CXXFLAGS")
      ->type_name("FLAGS")
      ->group(kProgram);
  command.add_flag("--dry_run", flags_.dry_run, "Print what would be started, with the origin of each value")
      ->group(kProgram);
  // For scripts written for HF Accelerate: its launcher's own affairs, which ours does not have.
  command.add_flag("--no_python", no_python_)->group(kNoEffect);
  for (const char* name : {"--role", "--rdzv_conf", "--monitor_interval"}) {
    command.add_option(name, ignored_)->group(kNoEffect);
  }

  command.add_option("--log_dir", flags_.log_dir, "Write each process's output to rank_N.log there")
      ->type_name("FOLDER")
      ->group(kOutput);
  command.add_flag("-t,--tee", flags_.tee, "With --log_dir: print the output as well")->group(kOutput);
  command.add_flag("--no_prefix", flags_.no_prefix, "No \"[rank N] \" before the lines")->group(kOutput);
  command.add_flag("-q,--quiet", flags_.quiet, "No lines of the launcher but errors")->group(kOutput);
}

void LaunchFlagSet::add_machines(CLI::App& command) {
  const auto seconds = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)
        ->check(CLI::Range(0.05, 86400.0))
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
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(kMachines);
  command
      .add_option("--rdzv_id", flags_.rdzv_id,
                  "Name of the job, the same on all machines; strangers are refused")
      ->envname("ACCELERATE_RDZV_ID")
      ->type_name("TEXT")
      ->group(kMachines);
  seconds("--connect_timeout", flags_.connect_timeout_s, "How long machines wait for one another [300]");
  seconds("--heartbeat_timeout", flags_.heartbeat_timeout_s,
          "Silence after which a machine is lost; that of machine 0 holds for all [5]");
  seconds("--last_call", flags_.last_call_s, "How long a job that could start with fewer machines waits [3]");
}

void LaunchFlagSet::override_machines(std::vector<Override>& out) const {
  if (flags_.nnodes.empty()) {
    if (flags_.nproc_per_node == 0) return;
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
  out.push_back({"num_machines", std::to_string(most)});
  out.push_back({"num_processes", std::to_string(processes)});
  out.push_back({"rdzv_backend", "c10d"});
}

std::pair<int, int> LaunchFlagSet::machine_range() const {
  constexpr int64_t kMost = 100000;
  const size_t colon = flags_.nnodes.find(':');
  const auto most = parse_int(colon == std::string::npos ? flags_.nnodes : flags_.nnodes.substr(colon + 1));
  const auto least = parse_int(flags_.nnodes.substr(0, colon));
  if (!most || !least || *least < 1 || *most < *least || *most > kMost) {
    throw ConfigError({.what = "--nnodes",
                       .expected = "MIN:MAX or a number, such as 2:4",
                       .got = concat("'", flags_.nnodes, "'")});
  }
  return {static_cast<int>(*least), static_cast<int>(*most)};
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

std::vector<Override> LaunchFlagSet::overrides() const {
  std::vector<Override> out;
  if (multi_gpu_) out.push_back({"distributed_type", "MULTI_GPU"});
  if (tpu_) out.push_back({"distributed_type", "XLA"});
  for (const Key& key : keys_) {
    if (key.option->count() > 0) out.push_back({key.name, key.text});
  }
  override_machines(out);
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
