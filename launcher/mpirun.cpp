#include "launcher/mpirun.h"

#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <vector>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"
#include "launcher/hostfile.h"
#include "launcher/program.h"

namespace accelerate::cli {
namespace {

constexpr const char* kName = "mpirun";
constexpr auto kVersionTimeout = std::chrono::seconds(20);

std::string find_mpirun(const EnvVars& variables) {
  try {
    return find_program(kName, variables);
  } catch (const LaunchError&) {
    throw LaunchError({.what = "mpirun_config asks for mpirun, which is not in PATH",
                       .hint =
                           "Install Open MPI (apt-get install openmpi-bin), or leave mpirun_config out: this "
                           "launcher starts ranks by itself."});
  }
}

std::vector<std::string> entries(const EnvVars& variables) {
  std::vector<std::string> out;
  for (const auto& [name, value] : variables.values()) out.push_back(concat(name, "=", value));
  return out;
}

// What `program --version` prints, its first kilobytes.
std::string version_of(const std::string& program, const EnvVars& variables) {
  SpawnOptions options;
  options.program = program;
  options.arguments = {"--version"};
  options.environment = entries(variables);
  options.standard_output = ChildOutput::kPipe;
  options.standard_error = ChildOutput::kMerge;
  ChildProcess child = spawn(options);
  const bool ended = child.wait(Deadline::after(kVersionTimeout)).has_value();
  std::string text(4096, '\0');
  const ssize_t got = ended ? ::read(child.stdout_pipe().get(), text.data(), text.size()) : 0;
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  return text;
}

// Others have other flags, and other variables for their ranks.
void check_is_open_mpi(const std::string& program, const EnvVars& variables) {
  const std::string version = version_of(program, variables);
  if (version.find("Open MPI") != std::string::npos || version.find("OpenRTE") != std::string::npos) return;
  throw LaunchError({.what = concat(program, " is not Open MPI's"),
                     .got = shell_quote(split(version, '\n').front()),
                     .hint = "Put Open MPI's mpirun first in PATH, or leave mpirun_config out."});
}

std::string expanded(const std::string& path, const EnvVars& variables) {
  if (!path.starts_with("~/")) return path;
  return variables.get("HOME").value_or("~") + path.substr(1);
}

// Nothing where the hostfile leaves it to Open MPI.
std::optional<int> slots(const std::vector<HostEntry>& hosts) {
  int total = 0;
  for (const HostEntry& host : hosts) {
    if (!host.slots) return std::nullopt;
    total += *host.slots;
  }
  return total;
}

void check_slots(const std::vector<HostEntry>& hosts, const std::string& path, int processes, int machines) {
  const auto have = slots(hosts);
  if (have && *have < processes) {
    throw ConfigError({.what = concat("num_processes is ", processes, ", but hostfile ", shell_quote(path),
                                      " has ", *have, *have == 1 ? " slot" : " slots"),
                       .hint = "Raise slots= in the file, or lower --num_processes."});
  }
  if (machines > 1 && hosts.size() < static_cast<size_t>(machines)) {
    throw ConfigError({.what = concat("num_machines is ", machines, ", but hostfile ", shell_quote(path),
                                      " names ", hosts.size(), hosts.size() == 1 ? " machine" : " machines"),
                       .hint = "Add the missing ones, or lower --num_machines."});
  }
}

bool is_here(const std::string& host) {
  return detail::is_loopback(host) || host == host_name();
}

// Rank 0 runs on the first machine, which Open MPI fills before the others.
void set_address(LaunchPlan& plan, const Config& config, const std::vector<HostEntry>& hosts) {
  const bool elsewhere = hosts.size() > 1 || !is_here(hosts.front().name);
  if (!elsewhere && !config.main_process_port) return;  // ranks of one machine find one another by themselves
  const std::string address = elsewhere ? hosts.front().name : "127.0.0.1";
  plan.environment[variables::kMasterAddr] = config.main_process_ip.value_or(address);
  plan.environment[variables::kMasterPort] =
      std::to_string(config.main_process_port.value_or(detail::kDefaultMasterPort));
}

void add(std::vector<std::string>& words, std::vector<std::string> more) {
  words.insert(words.end(), more.begin(), more.end());
}

// By name: values of variables may be secret, and command lines are public.
void add_variables(std::vector<std::string>& words, const LaunchPlan& plan, const EnvVars& variables) {
  for (const auto& [name, value] : plan.environment) add(words, {"-x", name});
  add(words, {"-x", variables::kMpirunJob});
  const char* const loader = "LD_LIBRARY_PATH";
  if (variables.get(loader) && !plan.environment.contains(loader)) add(words, {"-x", loader});
}

}  // namespace

void start_through_mpirun(LaunchPlan& plan, const Config& config, const EnvVars& variables,
                          const std::function<void(const std::function<void()>&)>& check) {
  std::string mpirun = kName;
  check([&] {
    mpirun = find_mpirun(variables);
    check_is_open_mpi(mpirun, variables);
  });
  const auto processes = static_cast<int>(config.num_processes.value_or(1));
  const auto machines = static_cast<int>(config.num_machines);
  std::vector<HostEntry> hosts = {{.name = "localhost", .slots = processes}};
  std::vector<std::string> words = {"-n", std::to_string(processes)};
  if (config.mpirun.hostfile) {
    const std::string path = expanded(*config.mpirun.hostfile, variables);
    check([&] {
      hosts = read_hostfile(path, describe(config.origin_of("mpirun_config.mpirun_hostfile")));
      check_slots(hosts, path, processes, machines);
    });
    add(words, {"--hostfile", path});
  } else if (machines > 1) {
    check([&] {
      throw ConfigError(
          {.what = concat("num_machines is ", machines, ", and mpirun_config names no hostfile"),
           .hint = "Pass --mpirun_hostfile FILE with the machines' names."});
    });
  } else {
    add(words, {"-host", concat("localhost:", processes)});
  }
  if (machines > 1) add(words, {"-N", std::to_string(processes / machines)});
  set_address(plan, config, hosts);
  const int local = std::max(1, processes / std::max<int>(machines, 1));
  plan.num_processes = local;
  const int threads = threads_per_rank(plan);
  if (plan.num_cpu_threads || !variables.get(variables::kOmpNumThreads))
    plan.environment[variables::kOmpNumThreads] = std::to_string(threads);
  // Open MPI would pin each rank to one core, whatever its number of threads.
  if (config.enable_cpu_affinity) {
    add(words, {"--map-by", concat("slot:PE=", threads), "--bind-to", "core"});
  } else {
    add(words, {"--bind-to", "none"});
  }
  add(words, {"--tag-output"});
  if (::geteuid() == 0) add(words, {"--allow-run-as-root"});
  add_variables(words, plan, variables);
  if (!plan.program.empty()) words.push_back(plan.program);
  add(words, plan.arguments);
  plan.num_processes = processes;
  plan.arguments = std::move(words);
  plan.program = mpirun;
  plan.starter = StarterPlan{.name = kName};
  plan.machines.reset();
}

}  // namespace accelerate::cli
