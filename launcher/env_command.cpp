#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"
#include "accelerate/environment/variables.h"
#include "launcher/commands.h"

#ifndef ACCELERATE_TORCH_VERSION
#define ACCELERATE_TORCH_VERSION "not built"
#endif

namespace accelerate::cli {
namespace {

void row(const std::string& name, const std::string& value) {
  std::cout << "- " << name << ": " << value << "\n";
}

std::string first_value(const std::string& path, const std::string& key, char separator) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const size_t at = line.find(separator);
    if (at == std::string::npos || trim(line.substr(0, at)) != key) continue;
    std::string value = trim(line.substr(at + 1));
    value.erase(std::remove(value.begin(), value.end(), '"'), value.end());
    return value;
  }
  return {};
}

std::string operating_system() {
  utsname name{};
  ::uname(&name);
  const std::string distribution = first_value("/etc/os-release", "PRETTY_NAME", '=');
  return concat(distribution.empty() ? "unknown distribution" : distribution, ", ", name.sysname, " ",
                name.release, " ", name.machine);
}

std::string compiler() {
#if defined(__clang__)
  return concat("clang ", __clang_major__, ".", __clang_minor__, ".", __clang_patchlevel__);
#elif defined(__GNUC__)
  return concat("g++ ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

std::string memory() {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto total = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
  const std::string free = first_value("/proc/meminfo", "MemAvailable", ':');
  const auto free_kib = free.empty() ? std::nullopt : parse_int(split(free, ' ').front());
  return concat(
      format_bytes(total),
      free_kib ? concat(", ", format_bytes(static_cast<uint64_t>(*free_kib) * 1024), " available") : "");
}

std::string shared_memory() {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) return "/dev/shm is not there";
  return concat(format_bytes(info.f_blocks * info.f_frsize), ", ",
                format_bytes(info.f_bavail * info.f_frsize), " free");
}

std::vector<std::string> gpus() {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    out.push_back(first_value(entry.path() / "information", "Model", ':'));
  }
  if (!out.empty()) return out;
  for (const auto& entry : fs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("nvidia") && parse_int(name.substr(6))) out.push_back("/dev/" + name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return version.empty() ? "" : concat(" (driver ", version, ")");
}

std::string limit_text(int which) {
  rlimit limit{};
  ::getrlimit(which, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

std::string limits() {
  return concat("open files ", limit_text(RLIMIT_NOFILE), ", processes ", limit_text(RLIMIT_NPROC),
                ", locked memory ", limit_text(RLIMIT_MEMLOCK), ", core size ", limit_text(RLIMIT_CORE));
}

// Variables of launchers and of libraries that change how a job runs. Others may hold secrets.
bool is_of_interest(const std::string& name) {
  static const std::vector<std::string> kPrefixes = {variables::kPrefix,
                                                     "FSDP_",
                                                     "TORCHELASTIC_",
                                                     "OMPI_COMM_",
                                                     "SLURM_STEP_",
                                                     "NCCL_",
                                                     "GLOO_",
                                                     "OMP_",
                                                     "MKL_",
                                                     "CUDA_",
                                                     "PMIX_NAMESPACE"};
  static const std::vector<std::string> kNames = {
      variables::kRank,       variables::kWorldSize,      variables::kLocalRank,  variables::kLocalWorldSize,
      variables::kGroupRank,  variables::kGroupWorldSize, variables::kMasterAddr, variables::kMasterPort,
      variables::kSlurmJobId, "LD_LIBRARY_PATH"};
  for (const std::string& prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void print_config(const std::string& given, const EnvVars& variables) {
  ConfigSources sources{.file = std::nullopt, .environment = variables};
  if (!given.empty()) sources.file = given;
  if (given.empty()) {
    if (const auto found = find_default_config_file(variables)) sources.file = *found;
  }
  row("Configuration file", sources.file ? sources.file->string() : "none found");
  try {
    const InspectedConfig inspected = inspect_config(sources);
    for (const std::string& line : split(explain(inspected.config), '\n')) {
      if (!line.empty()) std::cout << "    " << line << "\n";
    }
    for (const Problem& problem : inspected.problems)
      std::cout << "    problem: " << describe(problem) << "\n";
  } catch (const Error& error) {
    // A broken file is exactly what a bug report may be about.
    std::cout << "    can't be used: " << error.what() << "\n";
  }
}

void print_environment(const EnvVars& variables) {
  std::cout << "- Variables:\n";
  bool any = false;
  for (const auto& [name, value] : variables.values()) {
    if (!is_of_interest(name)) continue;
    std::cout << "    " << name << "=" << value << "\n";
    any = true;
  }
  if (!any) std::cout << "    none\n";
}

int print_all(const std::string& config_file) {
  const EnvVars variables = EnvVars::from_process();
  std::cout << "Copy this block into a bug report:\n\n";
  row("accelerate", kVersion);
  row("LibTorch", ACCELERATE_TORCH_VERSION);
  row("System", operating_system());
  row("Compiler", compiler());
  row("CPUs", concat(logical_cpus(), " usable, ", physical_cores(), " cores"));
  row("Memory", memory());
  row("Shared memory", shared_memory());
  const std::vector<std::string> devices = gpus();
  row("GPUs", devices.empty() ? "none" : concat(devices.size(), " x ", devices.front(), driver_version()));
  row("Limits", limits());
  print_config(config_file, variables);
  print_environment(variables);
  return 0;
}

}  // namespace

void add_env_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("env", "Print what a bug report should hold");
  const auto config_file = std::make_shared<std::string>();
  command->add_option("--config_file", *config_file, "Configuration file to show")->type_name("FILE");
  command->callback([config_file, &exit_code] { exit_code = print_all(*config_file); });
}

}  // namespace accelerate::cli
