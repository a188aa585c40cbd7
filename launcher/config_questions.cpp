#include "launcher/config_questions.h"

#include <algorithm>

#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"

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
  config.origins.erase(std::string(key));
  if (!says_nothing) config.origins[std::string(key)] = {Origin::kCode, std::string(kAnswer), 0};
  return {};
}

// What a launch with the answers so far would say about this key.
std::vector<std::string> remarks_on(const Config& config, std::string_view key, Severity severity) {
  std::vector<std::string> out;
  for (const Problem& problem : validate(config)) {
    if (problem.severity != severity || problem.key != key) continue;
    out.push_back(problem.hint.empty() ? problem.what + "." : concat(problem.what, ". ", problem.hint));
  }
  return out;
}

// As store(), and refuses what a launch with the answers so far would refuse on account of this key.
std::string store_checked(Config& config, std::string_view key, const std::string& text) {
  Config trial = config;
  std::string reason = store(trial, key, text);
  if (!reason.empty()) return reason;
  const auto errors = remarks_on(trial, key, Severity::kError);
  if (!errors.empty()) return errors.front();
  config = std::move(trial);
  return {};
}

// Asks for the value of one key. A doubtful answer is taken, and the doubt said.
void ask_key_as(Prompt& prompt, Config& config, std::string_view key, const std::string& question,
                const std::string& default_answer) {
  const KeyRow& row = *find_row(key);
  prompt.ask(question, default_answer,
             [&](const std::string& answer) { return store_checked(config, key, answer); });
  for (const std::string& doubt : remarks_on(config, key, Severity::kWarning)) {
    prompt.say(concat("  Note: ", row.name, " ", doubt));
  }
}

// What the key means and may be is in the schema.
void ask_key(Prompt& prompt, Config& config, std::string_view key, const std::string& default_answer) {
  const KeyRow& row = *find_row(key);
  const std::string expected = row.type == ValueType::kText ? std::string() : ": " + expected_text(row);
  ask_key_as(prompt, config, key, concat(row.help, " (", row.name, expected, ")"), default_answer);
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

std::string precision_help(const std::string& word) {
  if (word == "bf16") return "half the memory for activations, same range as float";
  if (word == "fp16") return "half the memory for activations, needs loss scaling (done for you)";
  if (word == "fp8") return "for the newest devices only";
  return "full precision";
}

// Asked only where there is a choice; what can't be chosen yet is named.
void ask_precision(Prompt& prompt, Config& config) {
  const KeyRow& row = *find_row("mixed_precision");
  const std::vector<std::string> works = words_of(row.works.empty() ? row.allowed : row.works);
  std::vector<std::string> missing;
  for (const std::string& word : words_of(row.allowed)) {
    if (std::find(works.begin(), works.end(), word) == works.end()) missing.push_back(word);
  }
  if (!missing.empty())
    prompt.say(concat("Not supported yet as mixed_precision: ", join(missing, ", "), "."));
  if (works.size() < 2) {
    store(config, row.name, std::string(row.default_text));
    return;
  }
  std::vector<Choice> choices;
  for (const std::string& word : works) choices.push_back({word, precision_help(word)});
  store(config, row.name, prompt.choose(std::string(row.help), choices, std::string(row.default_text)));
}

// How machines find one another. Which one this is, is asked only where they don't number themselves.
void ask_meeting(Prompt& prompt, Config& config) {
  const std::string rendezvous = prompt.choose(
      std::string(find_row("rdzv_backend")->help),
      {{"static", "each machine is started with a number of its own, all must be there"},
       {"c10d",
        "machines number themselves by arrival; with --nnodes MIN:MAX the job goes on when some are lost"}},
      "static");
  store(config, "rdzv_backend", rendezvous);
  if (rendezvous == "static") {
    ask_key(prompt, config, "machine_rank", "0");
    prompt.say(
        "  On the other machines, pass --machine_rank with theirs; all else in the file holds for all.");
  }
  ask_key(prompt, config, "main_process_ip", "");
  ask_key_as(prompt, config, "main_process_port",
             "Port of machine 0 (main_process_port: an integer from 1 to 65535)",
             std::to_string(detail::kDefaultMasterPort));
}

// mpirun starts the ranks of all machines, which then need not find one another.
bool ask_mpirun(Prompt& prompt, Config& config) {
  if (config.distributed_type != DistributedType::kMultiCpu) return false;
  if (!prompt.yes_or_no("Start the ranks of all machines through Open MPI's mpirun (mpirun_config)?", false))
    return false;
  prompt.ask("File of the machines' names (mpirun_hostfile)", "~/hostfile", [&](const std::string& answer) {
    return trim(answer).empty() ? std::string("Name the file.")
                                : store_checked(config, "mpirun_config.mpirun_hostfile", answer);
  });
  return true;
}

void ask_machines(Prompt& prompt, Config& config) {
  ask_key(prompt, config, "num_machines", "1");
  if (config.num_machines == 1) return;
  // Without effect here; HF Accelerate's files have it.
  store(config, "same_network", "true");
  if (!ask_mpirun(prompt, config)) ask_meeting(prompt, config);
}

// Rarely anything but the defaults, which keep HF Accelerate's loops as they are.
void ask_schedulers(Prompt& prompt, Config& config) {
  if (!prompt.yes_or_no("Change when schedulers of the learning rate step (rarely needed)?", false)) return;
  const KeyRow& with_optimizer = *find_row("step_scheduler_with_optimizer");
  const bool hold = prompt.yes_or_no(concat(with_optimizer.help, " (", with_optimizer.name, ")?"), true);
  store(config, with_optimizer.name, hold ? "true" : "false");
  const KeyRow& rule = *find_row("scheduler_rule");
  store(config, rule.name,
        prompt.choose(std::string(rule.help),
                      {{"per_optimizer_step", "one step for each step of the optimizer"},
                       {"per_process", "as many as there are processes, as HF Accelerate does"}},
                      std::string(rule.default_text)));
}

void ask_processes(Prompt& prompt, Config& config) {
  if (config.distributed_type == DistributedType::kNo) {
    store(config, "num_processes", "1");
    return;
  }
  const bool gpus = config.distributed_type == DistributedType::kMultiGpu;
  const int64_t here = std::max(1, gpus ? config.machine.cuda_devices : config.machine.cores);
  const int64_t machines = config.num_machines;
  if (machines > 1) {
    prompt.say(concat("Processes are counted over all ", machines, " machines: ", here, " on each are ",
                      here * machines, "."));
  }
  const int64_t least = gpus ? 1 : 2;
  ask_key(prompt, config, "num_processes", std::to_string(std::max(least, here * machines)));
}

// Each process needs a core of its own to be pinned to.
void ask_affinity(Prompt& prompt, Config& config) {
  constexpr std::string_view kKey = "enable_cpu_affinity";
  ask_yes_no_key(prompt, config, kKey);
  if (!config.enable_cpu_affinity || *config.num_processes / config.num_machines <= config.machine.cores)
    return;
  prompt.say("  Note: left out, since a machine like this one has fewer cores than processes.");
  store(config, kKey, "false");
}

// No key of HF Accelerate's files, and the usual share is right but for loaders with threads of their own.
void say_threads(Prompt& prompt, const Config& config) {
  const int64_t local = config.num_processes.value_or(1) / config.num_machines;
  const int64_t threads = std::max<int64_t>(1, physical_cores() / std::max<int64_t>(1, local));
  prompt.say(concat("CPU threads of each process: its share of the cores (here ", threads,
                    "), unless OMP_NUM_THREADS is set or --num_cpu_threads_per_process is passed."));
}

}  // namespace

// In the order of HF Accelerate's questionnaire.
Config ask_config(Prompt& prompt, const MachineFacts& machine) {
  Config config;
  config.machine = machine;
  prompt.say(concat("This machine: ", machine.cores, machine.cores == 1 ? " core, " : " cores, ",
                    machine.cuda_devices, machine.cuda_devices == 1 ? " CUDA device." : " CUDA devices."));
  prompt.say(
      "Data parallel jobs are faster with the same memory a device. FSDP and ZeRO, which need less memory a "
      "device, are not supported yet and not offered.");
  ask_type(prompt, config);
  const bool several = config.distributed_type != DistributedType::kNo;
  if (several) {
    ask_machines(prompt, config);
    ask_yes_no_key(prompt, config, "debug");
  }
  if (config.distributed_type == DistributedType::kMultiCpu || machine.cuda_devices == 0) {
    store(config, "use_cpu", "true");
  } else if (!several) {
    ask_yes_no_key(prompt, config, "use_cpu");
  }
  ask_processes(prompt, config);
  if (!config.use_cpu && machine.cuda_devices > 0) ask_key(prompt, config, "gpu_ids", "all");
  say_threads(prompt, config);
  if (several) ask_affinity(prompt, config);
  ask_precision(prompt, config);
  ask_key(prompt, config, "gradient_accumulation_steps", "1");
  ask_schedulers(prompt, config);
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
