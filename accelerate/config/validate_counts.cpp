#include "accelerate/config/validate_counts.h"

#include <arpa/inet.h>

#include <algorithm>

#include "accelerate/config/excerpt.h"
#include "accelerate/config/placeholder.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"

namespace accelerate::detail {
namespace {

bool is_gpu_type(DistributedType type) {
  return type == DistributedType::kMultiGpu;
}

// An IPv4 or IPv6 address, or a host name (RFC 1123, and '_', which container networks allow). A name has a
// letter: C's own conversion would take 1234 for the address 0.0.4.210.
bool is_host(const std::string& text) {
  unsigned char buffer[sizeof(in6_addr)];
  if (::inet_pton(AF_INET, text.c_str(), buffer) == 1 || ::inet_pton(AF_INET6, text.c_str(), buffer) == 1) {
    return true;
  }
  if (is_placeholder(text)) return false;
  if (text.empty() || text.size() > 253 || text.front() == '-' || text.front() == '.') return false;
  bool has_letter = false;
  for (char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    if (!letter && !digit && c != '-' && c != '.' && c != '_') return false;
    has_letter = has_letter || letter;
  }
  return has_letter;
}

// "num_machines 2", or the flag that says so.
std::string machines_text(const Config& config) {
  const ValueOrigin origin = config.origin_of("num_machines");
  return concat(origin.origin == Origin::kCommandLine ? origin.detail : "num_machines", " ",
                config.num_machines);
}

void check_processes(const Config& config, Report& report) {
  const std::string_view type = to_string(config.distributed_type);
  if (!config.num_processes) {
    // A launch counts the devices; why it could not is said elsewhere.
    if (is_gpu_type(config.distributed_type) && config.num_machines == 1) return;
    report.error("num_processes", concat("is needed with distributed_type ", type),
                 "Pass --num_processes N (of the whole job, over all machines), or write num_processes: N.");
    return;
  }
  const int64_t processes = *config.num_processes;
  const int64_t machines = config.num_machines;
  if (processes < machines) {
    report.error(
        "num_processes",
        concat(processes, processes == 1 ? " process" : " processes", " for ", machines_text(config)),
        "num_processes counts those of all machines; each needs at least one.");
  } else if (processes % machines != 0) {
    report.error("num_processes",
                 concat(processes, " processes can't be shared out evenly over ", machines_text(config)),
                 concat("Take a multiple of ", machines, "."));
  } else if (processes == 1 && config.distributed_type != DistributedType::kNo) {
    report.warn("num_processes",
                concat("is 1 with distributed_type ", type, ": there is nothing to share out"), {});
  }
}

void check_addresses(const Config& config, ValidateFor purpose, Report& report) {
  const bool several = config.num_machines > 1;
  if (config.machine_rank >= config.num_machines) {
    report.error("machine_rank", concat("is ", config.machine_rank, " with ", machines_text(config)),
                 concat("Ranks of machines go from 0 to ", config.num_machines - 1, "."));
  }
  if (config.main_process_ip && !is_host(*config.main_process_ip)) {
    report.error("main_process_ip",
                 concat("'", excerpt(*config.main_process_ip), "' is no address and no host name"),
                 "Give the address of the machine with rank 0, such as 10.0.0.5.");
  }
  // The hostfile names the machines, and one launcher is enough.
  if (several && !config.main_process_ip && !uses_mpirun(config)) {
    const bool set_to_null = config.nulls.contains("main_process_ip");
    const std::string what =
        concat("is ", set_to_null ? "null" : "not given", " with ", machines_text(config));
    const std::string hint = "Pass --main_process_ip with the address of the machine with rank 0.";
    if (set_to_null || purpose == ValidateFor::kLaunch) {
      report.error("main_process_ip", what, hint);
    } else {
      report.warn("main_process_ip", what, hint);
    }
  }
  if (!config.main_process_port) return;
  const int64_t port = *config.main_process_port;
  if (several && port == 0) {
    report.error("main_process_port", concat("is 0 (any free one) with ", machines_text(config)),
                 concat("All machines must know the port: choose one, such as ", kDefaultMasterPort, "."));
  }
  if (port > 0 && port < 1024) {
    report.warn("main_process_port", concat(port, " is a privileged port"), "Choose one from 1024 on, or 0.");
  }
  if (config.distributed_type == DistributedType::kNo) {
    report.warn("main_process_port", concat(port, " has no effect with distributed_type NO"), {});
  }
}

void check_device_choice(const Config& config, Report& report) {
  const DistributedType type = config.distributed_type;
  if (config.use_cpu && is_gpu_type(type)) {
    report.error("use_cpu", concat("is true with distributed_type ", to_string(type)),
                 "Set distributed_type: MULTI_CPU, or use_cpu: false.");
  } else if (config.use_cpu && type != DistributedType::kNo && type != DistributedType::kMultiCpu) {
    report.warn("use_cpu", concat("is true with distributed_type ", to_string(type)), {});
  }
  if (!config.gpu_ids) return;
  if (config.use_cpu) {
    report.warn("gpu_ids", concat(join(*config.gpu_ids, ","), " is ignored on the CPU"), {});
    return;
  }
  const int64_t local = config.num_processes.value_or(1) / config.num_machines;
  const auto devices = static_cast<int64_t>(config.gpu_ids->size());
  if (type != DistributedType::kNo && local > devices) {
    report.error("gpu_ids",
                 concat("names ", devices, devices == 1 ? " device" : " devices", " (",
                        join(*config.gpu_ids, ","), ") for ", local, " processes a machine"),
                 concat("Each process needs a device of its own: name ", local, ", or set num_processes to ",
                        devices * config.num_machines, "."));
  }
}

Severity severity_on(ValidateFor purpose) {
  return purpose == ValidateFor::kFile ? Severity::kWarning : Severity::kError;
}

void check_cuda(const Config& config, int64_t local, ValidateFor purpose, Report& report) {
  const Severity severity = severity_on(purpose);
  const int devices = config.machine.cuda_devices;
  const bool asked = is_gpu_type(config.distributed_type) ||
                     (config.distributed_type == DistributedType::kNo && config.gpu_ids && !config.use_cpu);
  if (!asked || (config.use_cpu && is_gpu_type(config.distributed_type))) return;
  const std::string key = is_gpu_type(config.distributed_type) ? "distributed_type" : "gpu_ids";
  if (devices == 0) {
    const std::string what = key == "gpu_ids"
                                 ? concat(join(*config.gpu_ids, ","), ", but no CUDA device found")
                                 : std::string("MULTI_GPU, but no CUDA device found");
    if (purpose == ValidateFor::kFile) return report.machine(severity, key, what + " on this machine", {});
    return report.machine(severity, key, what + "; use --cpu", {});
  }
  if (local > devices) {
    report.machine(severity, "num_processes",
                   concat(local, " processes on this machine, but it has ", devices,
                          devices == 1 ? " CUDA device" : " CUDA devices"),
                   "Each process needs a device of its own; mind CUDA_VISIBLE_DEVICES.");
  }
  if (!config.gpu_ids) return;
  const std::vector<std::string> missing = missing_devices(config.machine, *config.gpu_ids);
  if (missing.empty()) return;
  const std::string named = concat(missing.size() == 1 ? "device " : "devices ", join(missing, ","));
  if (config.machine.visible_ids.empty()) {
    report.machine(severity, "gpu_ids",
                   concat(named, missing.size() == 1 ? " does" : " do", " not exist: this machine has ",
                          devices, ", numbered from 0 to ", devices - 1),
                   {});
    return;
  }
  const std::string visible = join(config.machine.visible_ids, ",");
  report.machine(severity, "gpu_ids",
                 concat("asks for ", named, ", but CUDA_VISIBLE_DEVICES shows ", visible, " only"),
                 concat("gpu_ids names devices as that list does: choose among ", visible, "."));
}

}  // namespace

void check_counts(const Config& config, ValidateFor purpose, Report& report) {
  check_processes(config, report);
  check_addresses(config, purpose, report);
  check_device_choice(config, report);
}

void check_machine(const Config& config, ValidateFor purpose, Report& report) {
  const int64_t local = config.num_processes.value_or(1) / config.num_machines;
  check_cuda(config, local, purpose, report);
  if (config.distributed_type != DistributedType::kMultiCpu) return;
  const int64_t cores = config.machine.cores;
  // Some more ranks than cores are a way to test; hundreds are a slip that would take the machine down.
  const int64_t limit = std::max<int64_t>(64, 16 * cores);
  if (local > limit) {
    report.machine(severity_on(purpose), "num_processes",
                   concat(local, " processes on a machine with ", cores, cores == 1 ? " core" : " cores"),
                   concat("The limit is ", limit, "; best is one a core or fewer."));
  } else if (local > cores) {
    report.machine(Severity::kWarning, "num_processes",
                   concat(local, " processes on a machine with ", cores, cores == 1 ? " core" : " cores",
                          ": they take turns"),
                   {});
  }
}

}  // namespace accelerate::detail
