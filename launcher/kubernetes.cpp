#include "launcher/kubernetes.h"

#include <algorithm>

#include "accelerate/config/machine.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::cli {
namespace {

[[noreturn]] void fail(const char* variable, const std::string& got, const std::string& expected) {
  throw ConfigError({.what = concat("environment variable ", variable),
                     .expected = expected,
                     .got = concat("'", got, "'"),
                     .hint = concat("Correct the job's manifest, or unset ", variable, ".")});
}

// "4", or what stands for the devices or cores of this machine.
int64_t processes_per_pod(const LaunchFlagSet& given, const EnvVars& variables, std::string& source) {
  if (given.flags().nproc_per_node > 0) {
    source = "--nproc_per_node";
    return given.flags().nproc_per_node;
  }
  const auto text = variables.get(variables::kPetNprocPerNode);
  if (!text) return 1;
  source = variables::kPetNprocPerNode;
  const MachineFacts machine = detect_machine(variables);
  const bool has_devices = machine.cuda_devices > 0;
  if (*text == "cpu" || (*text == "auto" && !has_devices)) return physical_cores();
  if (has_devices && (*text == "gpu" || *text == "auto")) return machine.cuda_devices;
  const auto number = parse_int(*text);
  if (!number || *number < 1)
    fail(variables::kPetNprocPerNode, *text, "a number, auto, gpu (where there are GPUs) or cpu");
  return *number;
}

// Host and port of "host:port", "[::1]:port" or "host".
void take_endpoint(const std::string& text, const char* variable, PodJob& job) {
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string::npos && text.find(']', colon) == std::string::npos;
  std::string host = text.substr(0, has_port ? colon : std::string::npos);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  job.keys["main_process_ip"] = {host, variable};
  if (!has_port) return;
  if (!parse_int(text.substr(colon + 1))) fail(variable, text, "HOST:PORT");
  job.keys["main_process_port"] = {text.substr(colon + 1), variable};
}

void take(const EnvVars& variables, const char* variable, const char* key, PodJob& job) {
  if (const auto text = variables.get(variable)) job.keys[key] = {*text, variable};
}

// Variables for torchrun, which it would read as its own flags.
PodJob from_pet(const EnvVars& variables) {
  PodJob job;
  const std::string machines = *variables.get(variables::kPetNnodes);
  const auto range = parse_machine_range(machines);
  if (!range) fail(variables::kPetNnodes, machines, "MIN:MAX or a number, such as 2:4");
  if (range->first < range->second) job.min_machines = range->first;
  job.keys["num_machines"] = {std::to_string(range->second), variables::kPetNnodes};
  job.job_name = variables.get(variables::kPetRdzvId);
  if (const auto restarts = variables.get_int(variables::kPetMaxRestarts))
    job.max_restarts = static_cast<int>(std::clamp<int64_t>(*restarts, 0, 1'000'000));
  if (range->second == 1) return job;
  take(variables, variables::kPetNodeRank, "machine_rank", job);
  take(variables, variables::kPetMasterAddr, "main_process_ip", job);
  take(variables, variables::kPetMasterPort, "main_process_port", job);
  if (const auto endpoint = variables.get(variables::kPetRdzvEndpoint))
    take_endpoint(*endpoint, variables::kPetRdzvEndpoint, job);
  take(variables, variables::kPetRdzvBackend, "rdzv_backend", job);
  // Elastic jobs number their machines themselves, unless they say how it is done.
  if (job.min_machines && !job.keys.contains("rdzv_backend"))
    job.keys["rdzv_backend"] = {"c10d", variables::kPetNnodes};
  return job;
}

// One process a pod was meant; the launcher makes it one launcher a pod.
PodJob from_plain(const EnvVars& variables) {
  PodJob job;
  take(variables, variables::kWorldSize, "num_machines", job);
  if (variables.get_int(variables::kWorldSize).value_or(1) <= 1) return job;
  take(variables, variables::kRank, "machine_rank", job);
  return job;
}

// The first pod is told "localhost" by some operators, at which no other pod would reach it.
void take_address(const EnvVars& variables, PodJob& job) {
  const auto count = job.keys.find("num_machines");
  if (count == job.keys.end() || count->second.text == "1") return;
  if (!job.keys.contains("main_process_ip")) take(variables, variables::kMasterAddr, "main_process_ip", job);
  if (!job.keys.contains("main_process_port"))
    take(variables, variables::kMasterPort, "main_process_port", job);
  const auto address = job.keys.find("main_process_ip");
  if (address == job.keys.end() || !detail::is_loopback(address->second.text)) return;
  if (variables.get(variables::kKubernetesHost)) address->second.text = host_name();
}

}  // namespace

EnvVars PodJob::with_keys(EnvVars variables) const {
  for (const auto& [key, value] : keys) {
    const std::string name = words_of(find_row(key)->environment).front();
    if (!variables.get(name)) variables.set(name, value.text);
  }
  return variables;
}

void PodJob::set_origins(Config& config) const {
  for (const auto& [key, value] : keys) {
    const ValueOrigin origin = config.origin_of(key);
    if (origin.origin != Origin::kEnvironment || value_text(config, *find_row(key)) != value.text) continue;
    config.origins[key].detail = concat("Kubernetes (", value.variable, ")");
  }
}

std::optional<PodJob> find_pod_job(const LaunchFlagSet& given, const EnvVars& variables) {
  const bool inside_a_rank =
      variables.get(variables::kLauncher) || variables.get(variables::kTorchElasticRunId);
  if (inside_a_rank || given.says_machines()) return std::nullopt;
  const bool plain = variables.get(variables::kKubernetesHost) && variables.get(variables::kWorldSize) &&
                     variables.get(variables::kRank);
  if (!variables.get(variables::kPetNnodes) && !plain) return std::nullopt;
  PodJob job = variables.get(variables::kPetNnodes) ? from_pet(variables) : from_plain(variables);
  take_address(variables, job);
  std::string source = job.keys["num_machines"].variable;
  const int64_t local = processes_per_pod(given, variables, source);
  const int64_t machines = parse_int(job.keys["num_machines"].text).value_or(1);
  job.keys["num_processes"] = {std::to_string(machines * local), source};
  return job;
}

}  // namespace accelerate::cli
