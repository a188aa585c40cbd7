#include "launcher/config_questions.h"

#include <algorithm>

#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

constexpr std::string_view kAnswer = "an answer";

// Stores an answer; the text says why not, if it can't be.
std::string store(Config& config, std::string_view key, const std::string& text) {
  const KeyRow& row = *find_row(key);
  const SetResult result = set_value(config, row, text);
  if (!result.error.empty()) return result.error + ".";
  // Keys that HF Accelerate does not know go into the file only where they say something.
  const bool says_nothing = row.ours && value_text(config, row) == std::string(row.default_text);
  if (!says_nothing) config.origins[std::string(key)] = {Origin::kCode, std::string(kAnswer), 0};
  return {};
}

// As store(), and refuses what a launch with the answers so far would refuse on account of this key.
std::string store_checked(Config& config, std::string_view key, const std::string& text) {
  Config trial = config;
  std::string reason = store(trial, key, text);
  if (!reason.empty()) return reason;
  for (const Problem& problem : validate(trial)) {
    if (problem.severity == Severity::kError && problem.key == key) {
      return problem.hint.empty() ? problem.what + "." : concat(problem.what, ". ", problem.hint);
    }
  }
  config = std::move(trial);
  return {};
}

// Asks for the value of one key; what it means and may be is in the schema.
void ask_key(Prompt& prompt, Config& config, std::string_view key, const std::string& default_answer) {
  const KeyRow& row = *find_row(key);
  prompt.ask(concat(row.help, " (", row.name, ": ", expected_text(row), ")"), default_answer,
             [&](const std::string& answer) { return store_checked(config, key, answer); });
}

void ask_yes_no_key(Prompt& prompt, Config& config, std::string_view key) {
  const KeyRow& row = *find_row(key);
  const bool answer = prompt.yes_or_no(concat(row.help, " (", row.name, ")?"), false);
  store(config, key, answer ? "true" : "false");
}

std::string type_help(DistributedType type) {
  switch (type) {
    case DistributedType::kNo:
      return "one process on one device";
    case DistributedType::kMultiCpu:
      return "data parallel over CPU processes: faster, same memory a process";
    case DistributedType::kMultiGpu:
      return "data parallel, one CUDA device a process: faster, same memory a device";
    default:
      return std::string(to_string(type));
  }
}

void ask_type(Prompt& prompt, Config& config) {
  const KeyRow& row = *find_row("distributed_type");
  std::vector<Choice> choices;
  for (const std::string& word : words_of(row.works)) {
    Config trial = config;
    if (!set_value(trial, row, word).error.empty()) continue;
    if (trial.distributed_type == DistributedType::kMultiGpu && config.machine.cuda_devices == 0) continue;
    choices.push_back({word, type_help(trial.distributed_type)});
  }
  const bool several_gpus = config.machine.cuda_devices > 1;
  const std::string chosen = prompt.choose(std::string(row.help), choices, several_gpus ? "MULTI_GPU" : "NO");
  store(config, row.name, chosen);
}

// Asked only where there is a choice.
void ask_precision(Prompt& prompt, Config& config) {
  const KeyRow& row = *find_row("mixed_precision");
  std::vector<Choice> choices;
  for (const std::string& word : words_of(row.works)) {
    std::string help = "full precision";
    if (word == "bf16") help = "half the memory for activations, same range as float";
    if (word == "fp16") help = "half the memory for activations, needs loss scaling (done for you)";
    if (word == "fp8") help = "for the newest devices only";
    choices.push_back({word, help});
  }
  if (choices.size() < 2) {
    store(config, row.name, std::string(row.default_text));
    return;
  }
  store(config, row.name, prompt.choose(std::string(row.help), choices, std::string(row.default_text)));
}

void ask_processes(Prompt& prompt, Config& config) {
  if (config.distributed_type == DistributedType::kNo) {
    store(config, "num_processes", "1");
    return;
  }
  const bool gpus = config.distributed_type == DistributedType::kMultiGpu;
  const int available = gpus ? config.machine.cuda_devices : config.machine.cores;
  ask_key(prompt, config, "num_processes", std::to_string(std::max(gpus ? 1 : 2, available)));
}

}  // namespace

Config ask_config(Prompt& prompt, const MachineFacts& machine) {
  Config config;
  config.machine = machine;
  prompt.say(concat("This machine: ", machine.cores, machine.cores == 1 ? " core, " : " cores, ",
                    machine.cuda_devices, machine.cuda_devices == 1 ? " CUDA device." : " CUDA devices."));
  prompt.say(
      "Data parallel jobs are faster with the same memory a device. FSDP and ZeRO, which need less memory a "
      "device, are not supported yet and not offered.");
  ask_type(prompt, config);
  const DistributedType type = config.distributed_type;
  if (type == DistributedType::kMultiCpu || machine.cuda_devices == 0) {
    store(config, "use_cpu", "true");
  } else if (type == DistributedType::kNo) {
    ask_yes_no_key(prompt, config, "use_cpu");
  }
  ask_processes(prompt, config);
  if (!config.use_cpu && machine.cuda_devices > 0) ask_key(prompt, config, "gpu_ids", "all");
  ask_precision(prompt, config);
  ask_key(prompt, config, "gradient_accumulation_steps", "1");
  ask_yes_no_key(prompt, config, "debug");
  return config;
}

Config basic_config(const MachineFacts& machine, const std::string& mixed_precision) {
  Config config;
  config.machine = machine;
  const bool several = machine.cuda_devices > 1;
  store(config, "distributed_type", several ? "MULTI_GPU" : "NO");
  store(config, "num_processes", std::to_string(several ? machine.cuda_devices : 1));
  store(config, "use_cpu", machine.cuda_devices == 0 ? "true" : "false");
  const std::string reason =
      store_checked(config, "mixed_precision", mixed_precision.empty() ? "no" : mixed_precision);
  if (!reason.empty()) {
    throw ConfigError({.what = concat("--mixed_precision: ", reason), .expected = {}, .got = {}, .hint = {}});
  }
  return config;
}

}  // namespace accelerate::cli
