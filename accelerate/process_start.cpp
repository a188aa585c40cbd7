#include "accelerate/process_start.h"

#include <cstdio>

#include "accelerate/comm/device.h"
#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/environment/registry.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

Config read_config(const AcceleratorOptions& options, const EnvVars& environment, const Topology& topology) {
  ConfigSources sources{.file = std::nullopt, .environment = environment};
  if (options.config_file) {
    sources.file = *options.config_file;
  } else if (topology.launcher != "accel") {
    // Our launcher has read the file and passes what it says.
    if (const auto found = find_default_config_file(environment)) sources.file = *found;
  }
  if (options.cpu) sources.code.push_back({"use_cpu", *options.cpu ? "true" : "false"});
  if (options.mixed_precision) sources.code.push_back({"mixed_precision", *options.mixed_precision});
  if (options.gradient_accumulation_steps) {
    sources.code.push_back(
        {"gradient_accumulation_steps", std::to_string(*options.gradient_accumulation_steps)});
  }
  Config config = load_config(sources);
  throw_if_errors(validate(config, ValidateFor::kRank));
  return config;
}

LogLevel log_level(const EnvVars& environment) {
  const auto text = environment.get("ACCELERATE_LOG_LEVEL");
  if (!text) return LogLevel::kInfo;
  const auto level = parse_log_level(*text);
  if (!level) {
    throw ConfigError({.what = "ACCELERATE_LOG_LEVEL",
                       .expected = "debug, info, warning, error or off",
                       .got = concat("'", *text, "'")});
  }
  return *level;
}

DeviceRequest device_request(const Config& config, const EnvVars& environment) {
  return {.cpu = config.use_cpu || config.distributed_type == DistributedType::kMultiCpu,
          .name = environment.get("ACCELERATE_TORCH_DEVICE"),
          .cuda_required = config.distributed_type == DistributedType::kMultiGpu && !config.use_cpu};
}

void say_if_started_alone(const Config& config, const Topology& topology, Logger& logger) {
  if (topology.launcher != "plain" || config.num_processes.value_or(1) <= 1) return;
  logger.info(concat("this program was started as one process, and ",
                     config.file.empty() ? "the configuration" : config.file, " asks for ",
                     *config.num_processes, "; start it with: accel launch ./program"));
}

}  // namespace

ProcessStart start_process(const AcceleratorOptions& options) {
  const EnvVars environment = options.environment ? *options.environment : EnvVars::from_process();
  // Under our launcher standard output is a pipe, which C++ fills in blocks of 4 KiB: lines would come late,
  // and be lost when a rank is killed.
  if (!options.topology && environment.get(variables::kLauncher) == "accel")
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ProcessStart start;
  ProcessContext& context = start.context;
  context.topology = options.topology ? *options.topology : detect_topology(environment);
  context.logger = options.logger ? options.logger
                                  : std::make_shared<Logger>(context.topology.rank, log_level(environment));
  start.config = read_config(options, environment, context.topology);
  say_if_started_alone(start.config, context.topology, *context.logger);
  context.device = choose_device(device_request(start.config, environment), context.topology);
  context.communicator = options.communicator ? options.communicator
                                              : make_communicator(context.topology,
                                                                  {.backend = options.backend,
                                                                   .timeout = options.timeout,
                                                                   .device = context.device,
                                                                   .watchdog_notice = options.watchdog_notice,
                                                                   .debug = start.config.debug,
                                                                   .nccl = options.nccl},
                                                                  *context.logger);
  return start;
}

}  // namespace accelerate::detail
