// DeepSpeed's own JSON files. What each key means is from https://www.deepspeed.ai/docs/config-json.
#include "accelerate/config/deepspeed_file.h"

#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

InspectedDeepSpeedFile inspect(const std::string& text, const DeepSpeedReadOptions& options = {}) {
  const TempFolder folder;
  return inspect_deepspeed_file(folder.write("ds.json", text), options);
}

std::string zero(const std::string& inside) {
  return concat("{\"zero_optimization\": {", inside, "}}");
}

// The one problem of a file.
std::string problem_of(const std::string& text, Severity severity, const DeepSpeedReadOptions& options = {}) {
  const InspectedDeepSpeedFile found = inspect(text, options);
  INFO(text << "\n" << joined(found.problems));
  REQUIRE(found.problems.size() == 1);
  CHECK(found.problems.front().severity == severity);
  return describe(found.problems.front());
}

void check_fine(const std::string& text, const DeepSpeedReadOptions& options = {}) {
  const InspectedDeepSpeedFile found = inspect(text, options);
  INFO(text << "\n" << joined(found.problems));
  CHECK(found.problems.empty());
}

// A file with batch sizes; an empty text leaves a key out.
std::string batch(const std::string& train, const std::string& micro, const std::string& steps) {
  std::string out = "{\"zero_optimization\": {\"stage\": 1}";
  if (!train.empty()) out += concat(", \"train_batch_size\": ", train);
  if (!micro.empty()) out += concat(", \"train_micro_batch_size_per_gpu\": ", micro);
  if (!steps.empty()) out += concat(", \"gradient_accumulation_steps\": ", steps);
  return out + "}";
}

}  // namespace

TEST_CASE("a DeepSpeed file's values are read with their types") {
  const InspectedDeepSpeedFile found = inspect(R"({
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
    "gradient_clipping": 1, "steps_per_print": 2000, "communication_data_type": "fp32",
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000,
             "hysteresis": 2, "min_loss_scale": 0.5},
    "bf16": {"enabled": false},
    "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 2e8, "sub_group_size": 1e9,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/local", "pin_memory": true, "buffer_count": 4},
      "offload_param": {"device": "cpu", "buffer_size": 1e8}},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "torch_adam": true}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
  })");
  INFO(joined(found.problems));
  CHECK(described(found.problems, Severity::kError).empty());
  const DeepSpeedFile& file = found.file;
  CHECK(file.train_batch_size->value == 32);
  CHECK(file.train_micro_batch_size_per_gpu->value == 4);
  CHECK(file.gradient_accumulation_steps->value == 8);
  CHECK(file.gradient_clipping->value == 1.0);
  CHECK(file.communication_data_type->value == "fp32");
  CHECK(file.fp16.enabled->value == true);
  CHECK(file.fp16.loss_scale->value == 0.0);
  CHECK(file.fp16.min_loss_scale->value == 0.5);
  CHECK(file.bf16.enabled->value == false);
  CHECK(file.stage() == 3);
  CHECK(file.zero.reduce_bucket_size->value == 200000000);
  CHECK(file.zero.sub_group_size->value == 1000000000);
  CHECK(file.zero.offload_optimizer.device->value == "nvme");
  CHECK(file.zero.offload_optimizer.nvme_path->value == "/local");
  CHECK(file.zero.offload_optimizer.pin_memory->value == true);
  CHECK(file.zero.offload_param.device->value == "cpu");
  CHECK(file.zero.offload_param.buffer_size->value == 100000000);
  CHECK(file.optimizer.type->value == "AdamW");
  CHECK(file.optimizer.params.at("lr").value == std::vector<std::string>{"3e-4"});
  CHECK(file.optimizer.params.at("betas").value == std::vector<std::string>{"0.9", "0.95"});
  CHECK(file.optimizer.params.at("torch_adam").value == std::vector<std::string>{"true"});
  CHECK(file.scheduler.type->value == "WarmupLR");
  CHECK(file.autos.empty());
  CHECK_FALSE(file.zero.allgather_bucket_size.has_value());
  CHECK(file.origins.at("zero_optimization.stage").line == 7);
}

TEST_CASE("auto may stand for any value, and the file lists where it does") {
  const InspectedDeepSpeedFile found = inspect(R"({
    "train_batch_size": "auto", "gradient_clipping": "auto", "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto", "offload_param": {"device": "auto"},
      "stage3_gather_16bit_weights_on_model_save": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}}})");
  INFO(joined(found.problems));
  CHECK(found.problems.empty());
  CHECK(found.file.autos ==
        std::vector<std::string>{
            "train_batch_size", "gradient_clipping", "fp16.enabled", "zero_optimization.stage",
            "zero_optimization.reduce_bucket_size", "zero_optimization.offload_param.device",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save", "optimizer.params.lr"});
  CHECK(found.file.train_batch_size->is_auto());
  CHECK_FALSE(found.file.stage().has_value());
  CHECK(found.file.optimizer.params.at("lr").is_auto());
}

TEST_CASE("stage 3 keys are read with and without their prefix, but not both at once") {
  for (const char* name : {"max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                           "param_persistence_threshold", "gather_16bit_weights_on_model_save"}) {
    const std::string value = name == std::string("gather_16bit_weights_on_model_save") ? "true" : "5";
    const auto plain = inspect(zero(concat("\"stage\": 3, \"", name, "\": ", value)));
    const auto prefixed = inspect(zero(concat("\"stage\": 3, \"stage3_", name, "\": ", value)));
    INFO(joined(plain.problems) << joined(prefixed.problems));
    CHECK(plain.problems.empty());
    CHECK(plain.file.zero == prefixed.file.zero);
    CHECK_FALSE(plain.file.zero == inspect(zero("\"stage\": 3")).file.zero);
    const std::string twice = problem_of(
        zero(concat("\"stage\": 3, \"stage3_", name, "\": ", value, ",\n \"", name, "\": ", value)),
        Severity::kError);
    CHECK_THAT(twice, ContainsSubstring("given twice, in lines 1 and 2"));
  }
  CHECK(inspect(zero("\"stage\": 3, \"stage3_gather_fp16_weights_on_model_save\": true"))
            .file.zero.gather_16bit_weights_on_model_save->value == true);
}

TEST_CASE("all problems of a DeepSpeed file are told at once, each with file, line and key") {
  const TempFolder folder;
  const auto path = folder.write("ds.json", R"({
  "zero_optimization": {
    "stage": 5,
    "offload_optimizer": {"device": "gpu"},
    "overlap_com": true,
    "reduce_bucket_size": 1.5
  },
  "fp16": true,
  "gradient_clipping": "much",
  "optimizer": {"params": {"lr": {"a": 1}}},
  "scheduler": {"type": ["CosineLR"]}
})");
  std::string message;
  try {
    (void)read_deepspeed_file(path);
  } catch (const ConfigError& error) {
    message = error.what();
  }
  const std::string at = path.string();
  for (const std::string& line :
       {concat(at, ":3: zero_optimization.stage: expected an integer from 0 to 3, or auto, got '5'"),
        concat(
            at,
            ":4: zero_optimization.offload_optimizer.device: expected none, cpu or nvme, or auto, got 'gpu'"),
        concat(at, ":5: zero_optimization.overlap_com: unknown key. Did you mean overlap_comm?"),
        concat(
            at,
            ":6: zero_optimization.reduce_bucket_size: expected an integer, 0 or more, or auto, got '1.5'"),
        concat(at, ":8: fp16: expected a block of keys: {...}, got 'true'"),
        concat(at, ":9: gradient_clipping: expected a number, 0 or more, or auto, got 'much'"),
        concat(at, ":10: optimizer.params.lr: expected a value or a list of values, got nested ones"),
        concat(at, ":10: optimizer: has no type"),
        concat(at, ":11: scheduler.type: expected a text, or auto, got a list")}) {
    CHECK_THAT(message, ContainsSubstring(line));
  }
  CHECK_THAT(message, ContainsSubstring("9 problems"));
}

TEST_CASE(
    "an unknown key is an error where it looks like a slip, and a warning where DeepSpeed would go on too") {
  CHECK_THAT(problem_of(zero("\"stage\": 1, \"reduce_bucketsize\": 5"), Severity::kError),
             ContainsSubstring("Did you mean reduce_bucket_size?"));
  CHECK_THAT(problem_of(zero("\"stage\": 1, \"reduce_bucketsize\": 5"), Severity::kWarning,
                        {.allow_unknown_keys = true}),
             ContainsSubstring("left out"));
  CHECK_THAT(problem_of(zero("\"stage\": 1, \"shiny\": 5"), Severity::kWarning),
             ContainsSubstring("zero_optimization.shiny: unknown key, without effect"));
  // A key of another section.
  CHECK_THAT(problem_of(R"({"zero_optimization": {"stage": 1}, "initial_scale_power": 5})", Severity::kError),
             ContainsSubstring("Did you mean fp16.initial_scale_power?"));
}

TEST_CASE("keys of DeepSpeed that have no part here are named and not judged") {
  const auto found = inspect(R"({"zero_optimization": {"stage": 1}, "aio": {"block_size": 1},
    "wall_clock_breakdown": false, "flops_profiler": {"anything": [1, {"x": null}]},
    "bf16": {"enabled": true, "loss_scale": 0, "hysteresis": 2}})");
  INFO(joined(found.problems));
  CHECK(found.problems.empty());
  CHECK(found.file.unused == std::vector<std::string>{"aio", "wall_clock_breakdown", "flops_profiler",
                                                      "bf16.loss_scale", "bf16.hysteresis"});
  CHECK(found.file.bf16.enabled->value == true);
}

TEST_CASE("precisions, devices and stages of a DeepSpeed file have to fit one another") {
  CHECK_THAT(problem_of(R"({"zero_optimization": {"stage": 1}, "fp16": {"enabled": true},
                            "bf16": {"enabled": true}})",
                        Severity::kError),
             ContainsSubstring("ds.json:2: bf16.enabled: is true, and so is fp16.enabled"));
  CHECK_THAT(problem_of(zero(R"("stage": 2, "offload_param": {"device": "cpu"})"), Severity::kWarning),
             ContainsSubstring("cpu needs stage 3, but stage is 2"));
  CHECK_THAT(problem_of(zero(R"("stage": 0, "offload_optimizer": {"device": "cpu"})"), Severity::kWarning),
             ContainsSubstring("cpu needs stage 1 or more, but stage is 0"));
  CHECK_THAT(problem_of(zero(R"("stage": 1, "offload_optimizer": {"device": "nvme"})"), Severity::kError),
             ContainsSubstring("nvme_path: is needed with device nvme"));
  CHECK_THAT(problem_of(R"({"train_batch_size": "auto"})", Severity::kWarning),
             ContainsSubstring("zero_optimization: is not given: nothing is sharded"));
  check_fine(zero(R"("stage": 2, "offload_param": {"device": "none"}, "offload_optimizer": null)"));
  check_fine(zero(R"("stage": "auto", "offload_param": {"device": "cpu"})"));
}

TEST_CASE("zero_optimization: true of old DeepSpeed is stage 1") {
  const auto found = inspect(R"({"zero_optimization": true, "train_batch_size": "auto"})");
  REQUIRE(found.problems.size() == 1);
  CHECK_THAT(describe(found.problems.front()), ContainsSubstring("value of an old release; read as stage 1"));
  CHECK(found.file.stage() == 1);
}

TEST_CASE("cpu_offload of old DeepSpeed is offload_optimizer") {
  const auto found = inspect(zero(R"("stage": 2, "cpu_offload": true)"));
  REQUIRE(found.problems.size() == 1);
  CHECK_THAT(describe(found.problems.front()), ContainsSubstring("today's is offload_optimizer.device"));
  CHECK(found.file.zero.offload_optimizer.device->value == "cpu");
}

TEST_CASE("batch sizes: train = micro x accumulation x processes") {
  struct Row {
    const char *train, *micro, *steps;
    int64_t processes;
    std::optional<DeepSpeedBatch> expected;
    const char* error;  // "": none
  };
  const Row kRows[] = {
      {"32", "4", "2", 4, DeepSpeedBatch{32, 4, 2}, ""},
      {"", "2", "4", 3, DeepSpeedBatch{24, 2, 4}, ""},
      {"", "2", "", 3, DeepSpeedBatch{6, 2, 1}, ""},
      {"24", "", "4", 3, DeepSpeedBatch{24, 2, 4}, ""},
      {"8", "1", "", 8, DeepSpeedBatch{8, 1, 1}, ""},
      {"\"auto\"", "4", "2", 4, DeepSpeedBatch{32, 4, 2}, ""},
      {"32", "\"auto\"", "2", 4, std::nullopt, ""},
      {"32", "4", "\"auto\"", 4, std::nullopt, ""},
      {"", "", "2", 4, std::nullopt, ""},
      {"8", "1", "", 2, std::nullopt, "gradient_accumulation_steps: 4, or start 8 processes"},
      {"32", "4", "2", 3, std::nullopt,
       "4 x gradient_accumulation_steps 2 x 3 processes is 24. Write "
       "train_batch_size: 24 or \"auto\", or start 4 processes."},
      {"10", "", "4", 3, std::nullopt, "is 10, no multiple of gradient_accumulation_steps 4 x 3 processes"},
  };
  for (const Row& row : kRows) {
    const std::string text = batch(row.train, row.micro, row.steps);
    INFO(text << " with " << row.processes);
    const auto found = inspect(text, {.num_processes = row.processes});
    INFO(joined(found.problems));
    CHECK(derive_batch(found.file, row.processes) == row.expected);
    if (*row.error == 0) {
      CHECK(found.problems.empty());
    } else {
      REQUIRE(found.problems.size() == 1);
      CHECK(found.problems.front().severity == Severity::kError);
      CHECK_THAT(describe(found.problems.front()), ContainsSubstring(row.error));
    }
  }
  // Without a number of processes.
  CHECK_THAT(problem_of(batch("8", "1", ""), Severity::kWarning), ContainsSubstring("fits 8 processes only"));
  CHECK_THAT(problem_of(batch("9", "2", "2"), Severity::kError), ContainsSubstring("Take a multiple of 4"));
  check_fine(batch("8", "", ""));
  // Products stay within 64 bits.
  check_fine(batch("1000000000000", "\"auto\"", "1000000"), {.num_processes = 9'000'000'000'000'000'000});
}

TEST_CASE("a value that could not be used has no second problem in its wake") {
  for (const std::string& text :
       {zero(R"("stage": 7, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})"),
        batch("8", "\"x\"", "1"), batch("8", "1", "0"), batch("0", "1", "1"),
        std::string(R"({"zero_optimization": 3, "train_batch_size": "auto"})")}) {
    CHECK_THAT(problem_of(text, Severity::kError, {.num_processes = 2}), ContainsSubstring("expected "));
  }
}

TEST_CASE("numbers of a DeepSpeed file have their range") {
  const auto refused = [](const std::string& line, const std::string& said) {
    CHECK_THAT(problem_of(concat("{\"zero_optimization\": {\"stage\": 1}, ", line, "}"), Severity::kError),
               ContainsSubstring(said));
  };
  refused("\"gradient_clipping\": -1", "gradient_clipping: expected a number, 0 or more, or auto, got '-1'");
  refused("\"fp16\": {\"loss_scale\": -0.5}", "fp16.loss_scale: expected a number, 0 or more");
  CHECK_THAT(problem_of(zero(R"("stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 1.5})"),
                        Severity::kError),
             ContainsSubstring("ratio: expected a number from 0 to 1, or auto, got '1.5'"));
}

TEST_CASE("what is no DeepSpeed file is refused with the reason") {
  const TempFolder folder;
  const auto refused = [&](const std::filesystem::path& path) {
    try {
      (void)inspect_deepspeed_file(path);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused(folder.path() / "none.json"), ContainsSubstring("does not exist"));
  CHECK_THAT(refused(folder.path()), ContainsSubstring("is a directory"));
  CHECK_THAT(refused(folder.write("a.json", "[1]")), ContainsSubstring("a list"));
  CHECK_THAT(refused(folder.write("b.json", "{\n\"a\": 1,\n}")),
             ContainsSubstring("b.json:3: not valid JSON"));
  CHECK_THAT(refused(folder.write("c.json", "")), ContainsSubstring("is empty"));
  CHECK_THAT(refused(folder.write("d.json", "{\n// why\n}")), ContainsSubstring("JSON has no comments"));
  for (const char* name : {"none.json", "a.json", "b.json"})
    CHECK_FALSE(is_deepspeed_file(folder.path() / name));
  CHECK_FALSE(is_deepspeed_file(folder.write("e.json", R"({"distributed_type": "NO", "fp16": true})")));
  CHECK(is_deepspeed_file(folder.write("f.json", zero("\"stage\": 1"))));
  CHECK(is_deepspeed_file(folder.write("g.txt", R"({"train_batch_size": 1})")));
}

TEST_CASE("a configuration that names a DeepSpeed file is judged with it") {
  const TempFolder folder;
  const auto json = folder.write("ds.json",
                                 "{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 1,\n"
                                 "\"bf16\": {\"enabled\": true},\n"
                                 "\"zero_optimization\": {\"stage\": 3, \"stge\": 1}}");
  const auto judge = [&](const std::string& more) {
    const auto file =
        folder.write("c.yaml", concat("distributed_type: DEEPSPEED\nnum_processes: 2\n", more,
                                      "deepspeed_config:\n  deepspeed_config_file: ", json.string(),
                                      "\n  zero_stage: 2\n"));
    const EnvVars none;
    return joined(validate(load_config({.file = file, .environment = none, .machine = cpu_box()})));
  };
  const std::string found = judge("mixed_precision: fp16\n");
  CHECK_THAT(found, ContainsSubstring("not supported yet: distributed_type DEEPSPEED"));
  CHECK_THAT(found, ContainsSubstring(concat("error ", json.string(), ":1: train_batch_size: is 8, but")));
  CHECK_THAT(found,
             ContainsSubstring(concat("error ", json.string(), ":3: zero_optimization.stge: unknown key")));
  CHECK_THAT(found, ContainsSubstring(concat("c.yaml:6: deepspeed_config.zero_stage: is 2, but ",
                                             json.string(), " says zero_optimization.stage 3")));
  CHECK_THAT(found, ContainsSubstring("mixed_precision: is fp16, but"));
  const std::string other = judge("mixed_precision: bf16\n");
  CHECK(other.find("mixed_precision: is") == std::string::npos);
  // Named where the configuration itself belongs.
  const EnvVars none;
  try {
    (void)load_config({.file = json, .environment = none, .machine = cpu_box()});
    FAIL("taken as a configuration");
  } catch (const ConfigError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("is DeepSpeed's own JSON file"));
    CHECK_THAT(error.what(), ContainsSubstring("deepspeed_config_file"));
  }
}
