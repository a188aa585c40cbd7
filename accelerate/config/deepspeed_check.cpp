#include "accelerate/config/deepspeed_check.h"

#include "accelerate/config/schema.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";
// Beyond any job; keeps products of batch sizes within 64 bits.
constexpr int64_t kMostProcesses = 1'000'000;

template <class T>
bool is(const DeepSpeedValue<T>& value, const T& wanted) {
  return value && value->value == wanted;
}

class Checker {
 public:
  Checker(const DeepSpeedFile& file, std::vector<Problem>& problems) : file_(file), problems_(problems) {}

  void check_precision() {
    if (!is(file_.fp16.enabled, true) || !is(file_.bf16.enabled, true)) return;
    error("bf16.enabled", "is true, and so is fp16.enabled",
          "Only one of them can be: set the other to false.");
  }

  void check_sharding() {
    if (!file_.origins.contains("zero_optimization")) {
      warn("zero_optimization", "is not given: nothing is sharded",
           R"(Write "zero_optimization": {"stage": 2}, or 1 or 3.)");
    }
    check_offload("zero_optimization.offload_optimizer", file_.zero.offload_optimizer, 1,
                  "the optimizer's state stays where the model is");
    check_offload("zero_optimization.offload_param", file_.zero.offload_param, 3,
                  "parameters stay on the device");
  }

  void check_components() {
    for (const std::string name : {"optimizer", "scheduler"}) {
      if (!file_.origins.contains(name) || file_.origins.contains(concat(name, ".type"))) continue;
      error(name, "has no type",
            concat("Name one (", name == "optimizer" ? "\"type\": \"AdamW\"" : "\"type\": \"WarmupLR\"",
                   "), or leave the section out to make it in the program."));
    }
  }

  void check_batch(std::optional<int64_t> num_processes) {
    const auto& given_train = file_.train_batch_size;
    if (!given_train || given_train->is_auto() || is_open(kSteps, file_.gradient_accumulation_steps)) return;
    if (is_open(kMicro, file_.train_micro_batch_size_per_gpu)) return;
    const int64_t train = *given_train->value;
    const int64_t steps = file_.gradient_accumulation_steps ? *file_.gradient_accumulation_steps->value : 1;
    const int64_t micro =
        file_.train_micro_batch_size_per_gpu ? *file_.train_micro_batch_size_per_gpu->value : 0;
    if (!num_processes) {
      if (micro > 0) check_batch_of_any_job(train, micro, steps);
    } else if (*num_processes <= kMostProcesses && !derive_batch(file_, *num_processes)) {
      refuse_batch(train, micro, steps, *num_processes);
    }
  }

 private:
  void warn(const std::string& key, const std::string& what, const std::string& hint) {
    add(Severity::kWarning, key, what, hint);
  }
  void error(const std::string& key, const std::string& what, const std::string& hint) {
    add(Severity::kError, key, what, hint);
  }
  void add(Severity severity, const std::string& key, const std::string& what, const std::string& hint) {
    const auto found = file_.origins.find(key);
    const ValueOrigin where =
        found != file_.origins.end() ? found->second : ValueOrigin{Origin::kFile, file_.file, 0};
    problems_.push_back({severity, ProblemKind::kContent, key, what, hint, where});
  }

  void check_offload(const std::string& key, const DeepSpeedOffload& offload, int64_t lowest_stage,
                     const char* otherwise) {
    if (!offload.device || offload.device->is_auto() || *offload.device->value == "none") return;
    const std::string& device = *offload.device->value;
    if (const auto stage = file_.stage(); stage && *stage < lowest_stage) {
      warn(key + ".device",
           concat(device, " needs stage ", lowest_stage, lowest_stage < 3 ? " or more" : "",
                  ", but stage is ", *stage, ": ", otherwise),
           {});
    }
    if (device == "nvme" && !offload.nvme_path) {
      error(key + ".nvme_path", "is needed with device nvme", "Name a folder on that drive.");
    }
  }

  // "auto", or a value that could not be used: somebody else's to settle.
  bool is_open(const char* key, const DeepSpeedValue<int64_t>& value) const {
    return value ? value->is_auto() : file_.origins.contains(key);
  }

  std::string steps_text(int64_t steps) const {
    return concat(kSteps, " ", steps, file_.gradient_accumulation_steps ? "" : " (not given)");
  }

  // `micro` is 0 where it is not given.
  void refuse_batch(int64_t train, int64_t micro, int64_t steps, int64_t processes) {
    const std::string many = concat(processes, processes == 1 ? " process" : " processes");
    if (micro == 0) {
      return error(kTrain, concat("is ", train, ", no multiple of ", steps_text(steps), " x ", many),
                   concat("Take a multiple of ", steps * processes, "."));
    }
    const int64_t per_step = micro * processes;
    std::string hint = concat("Write ", kTrain, ": ", per_step * steps, " or \"auto\"");
    if (train % per_step == 0) hint += concat(", or ", kSteps, ": ", train / per_step);
    if (train % (micro * steps) == 0) hint += concat(", or start ", train / (micro * steps), " processes");
    error(kTrain,
          concat("is ", train, ", but ", kMicro, " ", micro, " x ", steps_text(steps), " x ", many, " is ",
                 per_step * steps),
          hint + ".");
  }

  // Without a number of processes: numbers that fit one only, or none at all.
  void check_batch_of_any_job(int64_t train, int64_t micro, int64_t steps) {
    if (train % (micro * steps) != 0) {
      return error(kTrain,
                   concat("is ", train, ", no multiple of ", kMicro, " ", micro, " x ", steps_text(steps)),
                   concat("Take a multiple of ", micro * steps, ", or \"auto\"."));
    }
    const int64_t processes = train / (micro * steps);
    warn(kTrain,
         concat(train, " fits ", processes, processes == 1 ? " process" : " processes", " only (", kMicro,
                " ", micro, " x ", steps_text(steps), ")"),
         "Leave it out or write \"auto\" for any number.");
  }

  const DeepSpeedFile& file_;
  std::vector<Problem>& problems_;
};

// A value of the DeepSpeed file as text; nothing where it is not given or "auto".
std::optional<std::string> said(const DeepSpeedValue<int64_t>& value) {
  if (!value || value->is_auto()) return std::nullopt;
  return std::to_string(*value->value);
}
std::optional<std::string> said(const DeepSpeedValue<std::string>& value) {
  if (!value || value->is_auto()) return std::nullopt;
  return *value->value;
}
std::optional<std::string> said(const DeepSpeedValue<bool>& value) {
  if (!value || value->is_auto()) return std::nullopt;
  return *value->value ? "true" : "false";
}

}  // namespace

std::optional<DeepSpeedBatch> derive_batch(const DeepSpeedFile& file, int64_t num_processes) {
  const auto is_auto = [](const DeepSpeedValue<int64_t>& value) { return value && value->is_auto(); };
  const auto& train = file.train_batch_size;
  const auto& micro = file.train_micro_batch_size_per_gpu;
  if (num_processes < 1 || num_processes > kMostProcesses) return std::nullopt;
  if (is_auto(micro) || is_auto(file.gradient_accumulation_steps)) return std::nullopt;
  const int64_t steps = file.gradient_accumulation_steps ? *file.gradient_accumulation_steps->value : 1;
  if (micro) {
    const DeepSpeedBatch out{*micro->value * steps * num_processes, *micro->value, steps};
    if (train && !train->is_auto() && *train->value != out.train) return std::nullopt;
    return out;
  }
  if (!train || train->is_auto() || *train->value % (steps * num_processes) != 0) return std::nullopt;
  return DeepSpeedBatch{*train->value, *train->value / (steps * num_processes), steps};
}

namespace detail {

void check_deepspeed(const DeepSpeedFile& file, std::optional<int64_t> num_processes,
                     std::vector<Problem>& problems) {
  Checker checker(file, problems);
  checker.check_precision();
  checker.check_sharding();
  checker.check_components();
  checker.check_batch(num_processes);
}

std::vector<DeepSpeedConflict> find_conflicts(const Config& config, const DeepSpeedFile& file) {
  std::vector<DeepSpeedConflict> out;
  const auto compare = [&](const std::string& key, const char* file_key,
                           const std::optional<std::string>& there) {
    const auto here = value_text(config, *find_row(key));
    if (!there || !here || *here == "auto" || !config.given(key) || *here == *there) return;
    out.push_back({key, *here, concat(file_key, " ", *there)});
  };
  const DeepSpeedZero& zero = file.zero;
  compare("deepspeed_config.zero_stage", "zero_optimization.stage", said(zero.stage));
  compare("deepspeed_config.gradient_accumulation_steps", kSteps, said(file.gradient_accumulation_steps));
  compare("deepspeed_config.offload_optimizer_device", "zero_optimization.offload_optimizer.device",
          said(zero.offload_optimizer.device));
  compare("deepspeed_config.offload_param_device", "zero_optimization.offload_param.device",
          said(zero.offload_param.device));
  compare("deepspeed_config.zero3_save_16bit_model",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save",
          said(zero.gather_16bit_weights_on_model_save));
  const auto& clipping = file.gradient_clipping;
  const auto& ours = config.deepspeed.gradient_clipping;
  if (clipping && ours && clipping->value && ours->value && *clipping->value != *ours->value) {
    out.push_back({"deepspeed_config.gradient_clipping", concat(*ours->value),
                   concat("gradient_clipping ", *clipping->value)});
  }
  const bool fp16 = is(file.fp16.enabled, true);
  const bool bf16 = is(file.bf16.enabled, true);
  const std::string_view precision = to_string(config.mixed_precision);
  if (fp16 != bf16 && config.given("mixed_precision") && precision != (fp16 ? "fp16" : "bf16")) {
    out.push_back(
        {"mixed_precision", std::string(precision), concat(fp16 ? "fp16" : "bf16", ".enabled true")});
  }
  return out;
}

}  // namespace detail
}  // namespace accelerate
