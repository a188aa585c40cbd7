#include "accelerate/config/derive.h"

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

void warn(std::vector<Problem>& problems, const char* key, const std::string& what, const std::string& hint,
          const ValueOrigin& where) {
  problems.push_back({Severity::kWarning, ProblemKind::kContent, key, what, hint, where});
}

// "file a.yaml:3" for a value that somebody gave; what would be a default reads as such.
std::string said_by(const Config& config, std::string_view key) {
  return describe(config.origin_of(key));
}

void set_type(Config& config, DistributedType type, const std::string& reason) {
  config.distributed_type = type;
  config.origins["distributed_type"] = {Origin::kDetected, reason, 0};
}

bool may_use_gpus(const Config& config) {
  return !config.use_cpu && config.machine.cuda_devices > 0;
}

// One process a device, where nobody said how many.
void count_devices(Config& config) {
  if (config.num_processes || !may_use_gpus(config) || config.num_machines != 1) return;
  const int64_t devices =
      config.gpu_ids ? static_cast<int64_t>(config.gpu_ids->size()) : int64_t{config.machine.cuda_devices};
  config.num_processes = devices;
  config.origins["num_processes"] = {Origin::kDetected,
                                     concat(devices, devices == 1 ? " CUDA device" : " CUDA devices"), 0};
}

// Nobody said how to spread the job: mpirun starts CPU ranks; else by the number of processes, and without
// one by the number of devices.
void choose_type(Config& config) {
  if (config.mpirun.hostfile)
    return set_type(config, DistributedType::kMultiCpu, said_by(config, "mpirun_config.mpirun_hostfile"));
  count_devices(config);
  const int64_t processes = config.num_processes.value_or(config.num_machines);
  if (processes <= 1) return;
  if (may_use_gpus(config)) {
    set_type(config, DistributedType::kMultiGpu, concat(processes, " processes, CUDA devices are there"));
  } else {
    set_type(config, DistributedType::kMultiCpu,
             concat(processes, " processes, ", config.use_cpu ? "use_cpu is set" : "no CUDA device"));
  }
}

// A flag over a file's value of another key: `--cpu` with a file for GPUs, `--num_processes 2` with one for
// NO.
void apply_stronger_wish(Config& config, std::vector<Problem>& problems) {
  const Origin type = config.origin_of("distributed_type").origin;
  const ValueOrigin cpu = config.origin_of("use_cpu");
  if (config.use_cpu && config.distributed_type == DistributedType::kMultiGpu && cpu.origin > type) {
    set_type(config, DistributedType::kMultiCpu,
             concat("MULTI_GPU (", said_by(config, "distributed_type"), ") with ", describe(cpu)));
    return;
  }
  const ValueOrigin count = config.origin_of("num_processes");
  if (config.distributed_type != DistributedType::kNo || count.origin <= type) return;
  if (!config.num_processes || *config.num_processes <= 1) return;
  const DistributedType chosen =
      may_use_gpus(config) ? DistributedType::kMultiGpu : DistributedType::kMultiCpu;
  warn(problems, "distributed_type",
       concat("is NO (", said_by(config, "distributed_type"), "), but num_processes is ",
              *config.num_processes, "; starting ", *config.num_processes, " processes as ",
              to_string(chosen)),
       {}, count);
  set_type(
      config, chosen,
      concat("NO (", said_by(config, "distributed_type"), ") with num_processes ", *config.num_processes));
}

void settle_count(Config& config, std::vector<Problem>& problems) {
  if (config.distributed_type != DistributedType::kNo) return;
  if (config.num_processes.value_or(1) > 1) {
    warn(problems, "num_processes",
         concat("is ", *config.num_processes, ", but distributed_type is NO: running 1 process"),
         concat("For ", *config.num_processes, " processes, set distributed_type to MULTI_CPU or MULTI_GPU."),
         config.origin_of("num_processes"));
  }
  if (config.num_processes != 1) {
    config.num_processes = 1;
    config.origins["num_processes"] = {Origin::kDetected, "distributed_type NO", 0};
  }
}

}  // namespace

void derive(Config& config, std::vector<Problem>& problems) {
  if (config.given("distributed_type")) {
    apply_stronger_wish(config, problems);
    if (config.distributed_type == DistributedType::kMultiGpu) count_devices(config);
  } else {
    choose_type(config);
    if (!config.file.empty()) {
      warn(problems, "distributed_type",
           concat("is not given; taking ", to_string(config.distributed_type), " (",
                  said_by(config, "distributed_type"), ")"),
           "HF Accelerate refuses a file without this key.", {Origin::kFile, config.file, 0});
    }
  }
  if (config.distributed_type == DistributedType::kMultiCpu && !config.use_cpu) {
    config.use_cpu = true;
    config.origins["use_cpu"] = {Origin::kDetected, "distributed_type MULTI_CPU", 0};
  }
  settle_count(config, problems);
}

}  // namespace accelerate::detail
