#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <set>

#include "accelerate/config/load.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/cpu_topology.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"
#include "accelerate/launch/launch_plan.h"
#include "accelerate/launch/rank_environment.h"
#include "launcher/arguments.h"
#include "launcher/commands.h"
#include "launcher/compile.h"
#include "launcher/devices.h"
#include "launcher/kubernetes.h"
#include "launcher/launch_flags.h"
#include "launcher/machines.h"
#include "launcher/mpirun.h"
#include "launcher/program.h"

namespace accelerate::cli {
namespace {

constexpr const char* kUsage = "accel launch [flags] [--] program [arguments of the program]";
constexpr const char* kConfigFileVariable = "ACCELERATE_CONFIG_FILE";

// Keys that the launcher itself acts on; ranks learn the outcome through RANK, MASTER_PORT and so on.
bool is_for_launcher(std::string_view key) {
  static const std::set<std::string_view> kKeys = {"num_processes", "num_machines",    "machine_rank",
                                                   "gpu_ids",       "main_process_ip", "main_process_port"};
  return kKeys.count(key) > 0;
}

void print_warnings(const std::vector<Problem>& problems) {
  for (const Problem& problem : problems) {
    if (problem.severity == Severity::kWarning)
      std::cerr << concat("accel: warning: ", describe(problem), "\n");
  }
}

// With errors of reading, those of validate() are left out: they may follow from what could not be read.
std::vector<Problem> all_problems(const InspectedConfig& read) {
  std::vector<Problem> out;
  for (const Problem& problem : read.problems) {
    if (problem.severity == Severity::kError) out.push_back(problem);
  }
  const bool readable = out.empty();
  for (const Problem& problem : validate(read.config, ValidateFor::kLaunch)) {
    if (readable || problem.severity == Severity::kWarning) out.push_back(problem);
  }
  return out;
}

// `problems` gets the warnings. With errors, they are printed at once, since nobody else will.
Config read_config(const LaunchFlagSet& given, const EnvVars& variables, const std::optional<PodJob>& pod,
                   std::vector<Problem>& problems) {
  // Outside the braces: g++ 12 leaks the members before one whose initializer throws.
  std::vector<Override> overrides = given.overrides(pod.has_value());
  ConfigSources sources{.file = std::nullopt,
                        .environment = pod ? pod->with_keys(variables) : variables,
                        .command_line = std::move(overrides)};
  if (!given.flags().config_file.empty()) {
    sources.file = given.flags().config_file;
  } else if (const auto found = find_default_config_file(variables)) {
    sources.file = *found;
  }
  InspectedConfig read = inspect_config(sources);
  if (pod) pod->set_origins(read.config);
  find_machine_rank(read.config, variables);
  problems = all_problems(read);
  if (has_errors(problems) && !given.flags().quiet) print_warnings(problems);
  throw_if_errors(problems);
  return std::move(read.config);
}

// What the ranks have to know of the configuration, in the variables that they read.
std::map<std::string, std::string> config_variables(const Config& config) {
  std::map<std::string, std::string> out;
  if (!config.file.empty()) {
    std::error_code error;
    const auto path = std::filesystem::absolute(config.file, error);
    out[kConfigFileVariable] = error ? config.file : path.string();
  }
  for (const KeyRow& row : schema()) {
    if (row.environment.empty() || !config.given(row.name) || is_for_launcher(row.name)) continue;
    const std::string variable = words_of(row.environment).front();
    if (row.type == ValueType::kBlock) {
      out[variable] = "true";
    } else if (const auto text = value_text(config, row)) {
      out[variable] = *text;
    }
  }
  return out;
}

OutputOptions output_options(const LaunchFlags& flags) {
  OutputOptions out;
  out.prefix = !flags.no_prefix;
  out.log_directory = flags.log_dir;
  out.quiet = flags.quiet;
  if (flags.redirects > 0 && flags.log_dir.empty())
    throw ConfigError({.what = "--redirects needs a place for the output", .hint = "Add --log_dir FOLDER."});
  const int both = kStdoutStream | kStderrStream;
  const int tee = std::max(flags.tee, 0);
  // As torchrun: what is neither redirected nor shown twice is shown alone. Without a choice all is
  // redirected.
  if (flags.redirects >= 0) out.logged_streams = flags.redirects | tee;
  out.shown_streams = (both & ~out.logged_streams) | tee;
  return out;
}

LaunchPlan make_plan(const LaunchFlagSet& given, const Config& config, const EnvVars& variables,
                     const std::optional<PodJob>& pod) {
  const LaunchFlags& flags = given.flags();
  LaunchPlan plan;
  plan.base_environment = variables;
  plan.num_processes = static_cast<int>(config.num_processes.value_or(1) / config.num_machines);
  if (!uses_mpirun(config)) plan.machines = plan_machines(given, config, variables, pod);
  plan.environment = config_variables(config);
  if (const auto devices = devices_of_ranks(config, variables)) {
    plan.environment[variables::kCudaVisibleDevices] = *devices;
  }
  if (!uses_mpirun(config)) plan.rank_cpus = cpus_of_ranks(config, variables);
  if (flags.threads_per_process > 0) plan.num_cpu_threads = flags.threads_per_process;
  for (const auto& [name, value] : given.environment()) plan.environment[name] = value;
  if (config.main_process_port) plan.main_process_port = static_cast<int>(*config.main_process_port);
  plan.max_restarts = flags.max_restarts.value_or(pod && pod->max_restarts ? *pod->max_restarts : 0);
  plan.grace_period = std::chrono::milliseconds(std::llround(flags.grace_period_s * 1000));
  plan.output = output_options(flags);
  return plan;
}

std::string port_text(const LaunchPlan& plan) {
  if (plan.machines) {
    return concat(plan.machines->port, " of ", plan.machines->address,
                  "; the store's is chosen at the start");
  }
  if (!plan.main_process_port) return "29500, or any free one if that is taken";
  return *plan.main_process_port == 0 ? "any free one" : std::to_string(*plan.main_process_port);
}

void print_plan(const LaunchPlan& plan, const Config& config) {
  std::cout << explain(config);
  std::cout << "\n" << describe_machines(plan, config) << "\n";
  std::vector<std::string> words;
  if (!plan.program.empty()) words.push_back(shell_quote(plan.program));
  for (const std::string& argument : plan.arguments) words.push_back(shell_quote(argument));
  const std::string command = words.empty() ? "(none given)" : join(words, " ");
  if (plan.starter) {
    std::cout << plan.starter->name << ": " << command << "\nwith:";
    for (const auto& [name, value] : plan.environment) std::cout << " " << name << "=" << shell_quote(value);
    std::cout << "\n";
    return;
  }
  std::cout << "program: " << command << "\n";
  std::cout << "port: " << port_text(plan) << "\n";
  const int port = plan.machines ? 0 : plan.main_process_port.value_or(29500);
  const int machine = plan.machines ? plan.machines->machine_rank.value_or(0) : 0;
  for (int rank = 0; rank < plan.num_processes; ++rank) {
    std::cout << "rank " << machine * plan.num_processes + rank << ":";
    for (const auto& [name, value] : preview_rank_environment(plan, rank, port)) {
      std::cout << " " << name << "=" << shell_quote(value);
    }
    if (static_cast<size_t>(rank) < plan.rank_cpus.size())
      std::cout << " on CPUs " << format_cpu_list(plan.rank_cpus[static_cast<size_t>(rank)]);
    std::cout << "\n";
  }
}

void say_how_to_use_more(const Config& config, const LaunchFlags& flags) {
  const Origin origin = config.origin_of("num_processes").origin;
  const bool chosen_by_us = origin == Origin::kDefault || origin == Origin::kDetected;
  if (flags.quiet || !chosen_by_us || config.num_processes.value_or(1) != 1 || !config.file.empty()) return;
  std::cerr << concat("accel: starting 1 process; --num_processes N starts more (", logical_cpus(),
                      " CPUs here), and `accel config` keeps the choice\n");
}

// Nobody named it, and it may be older than the thought of using this launcher.
void say_file_of_hf(const Config& config, const EnvVars& variables, const LaunchFlags& flags) {
  if (flags.quiet || config.file.empty() || !flags.config_file.empty()) return;
  if (variables.get(kConfigFileVariable)) return;
  // Ours would be preferred, so it is one of theirs unless it lies where we save.
  const bool have_place = variables.get("XDG_CONFIG_HOME") || variables.get("HOME");
  const auto folder = std::filesystem::path(config.file).parent_path();
  if (have_place && folder == std::filesystem::path(default_save_path(variables)).parent_path()) return;
  std::cerr << concat("accel: configuration of HF Accelerate: ", config.file, "\n");
}

void say_what_is_overridden(const LaunchFlagSet& given, const LaunchPlan& plan) {
  if (given.flags().quiet || plan.starter) return;
  for (const auto& [name, value] : given.environment()) {
    if (detail::is_set_by_launcher(name))
      std::cerr << concat("accel: warning: --env ", name, " has no effect: every rank is given its own\n");
  }
}

// CLI11 does not know of the program, which is cut off before it sees the words.
class LaunchHelp final : public CLI::Formatter {
 public:
  LaunchHelp() { column_width(40); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return concat("\nUsage: ", kUsage, "\n");
  }
};

// A dry run shows the plan although something is missing that a start would need, and says what.
void check_or_warn(const LaunchFlags& flags, const std::function<void()>& check) {
  if (!flags.dry_run) return check();
  try {
    check();
  } catch (const Error& error) {
    std::cerr << concat("accel: warning: ", error.what(), "\n");
  }
}

// Without compiling a source.
std::string program_to_start(const std::string& name, const LaunchFlags& flags, const EnvVars& variables) {
  std::string out = name;
  check_or_warn(flags, [&] {
    if (is_source_file(name)) {
      check_source(name);
    } else {
      out = find_program(name, variables);
    }
  });
  return out;
}

// The program of a complete plan, also where mpirun starts it.
std::string& program_of(LaunchPlan& plan, size_t words) {
  return plan.starter ? plan.arguments[plan.arguments.size() - words] : plan.program;
}

void say_what_has_no_effect(const LaunchFlagSet& given, const std::vector<Problem>& warnings) {
  if (given.flags().quiet) return;
  print_warnings(warnings);
  for (const std::string& notice : given.notices()) std::cerr << concat("accel: warning: ", notice, "\n");
}

int launch(const LaunchFlagSet& given, const std::vector<std::string>& program) {
  const LaunchFlags& flags = given.flags();
  const EnvVars variables = EnvVars::from_process();
  if (program.empty() && !flags.dry_run) {
    throw ConfigError({.what = "no program given", .hint = concat("Usage: ", kUsage)});
  }
  std::vector<Problem> warnings;
  const std::optional<PodJob> pod = find_pod_job(given, variables);
  const Config config = read_config(given, variables, pod, warnings);
  say_what_has_no_effect(given, warnings);
  LaunchPlan plan = make_plan(given, config, variables, pod);
  if (!program.empty()) {
    plan.program = program_to_start(program.front(), flags, variables);
    plan.arguments.assign(program.begin() + 1, program.end());
  }
  if (uses_mpirun(config)) {
    if (!flags.nnodes.empty())
      throw ConfigError(
          {.what = "--nnodes and mpirun_config exclude one another",
           .hint = "mpirun starts the ranks of all machines: give --num_machines and --num_processes."});
    start_through_mpirun(plan, config, variables,
                         [&](const std::function<void()>& check) { check_or_warn(flags, check); });
  }
  say_what_is_overridden(given, plan);
  if (flags.dry_run) {
    print_plan(plan, config);
    return 0;
  }
  // Last, since it takes longest.
  CachedProgram compiled;
  if (is_source_file(program.front())) {
    try {
      compiled = compile_program(program.front(), flags.cxx_flags, variables, flags.quiet);
    } catch (const CompileInterrupted& interrupted) {
      if (!flags.quiet) std::cerr << concat("accel: ", interrupted.what(), "\n");
      return 128 + interrupted.signal();
    }
    program_of(plan, program.size()) = compiled.path;
  }
  say_how_to_use_more(config, flags);
  if (plan.machines && !flags.quiet) say_machine_rank(config);
  say_file_of_hf(config, variables, flags);
  return run(plan).exit_code;
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code, const std::vector<std::string>& program) {
  CLI::App* command = app.add_subcommand(kLaunch, "Start a program as several processes");
  command->formatter(std::make_shared<LaunchHelp>());
  const auto flags = std::make_shared<LaunchFlagSet>(*command);
  command->callback([flags, &exit_code, &program] { exit_code = launch(*flags, program); });
}

}  // namespace accelerate::cli
