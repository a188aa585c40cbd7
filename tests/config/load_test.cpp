// Precedence, origins, and what follows from other values.
#include "accelerate/config/schema.h"
#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

struct Given {
  std::string file = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::vector<Override> command_line = {};
  std::vector<Override> code = {};
  MachineFacts machine = cpu_box();
};

InspectedConfig merged(const Given& given) {
  const TempFolder folder;
  const EnvVars environment = variables(given.environment);
  ConfigSources sources{.file = std::nullopt,
                        .environment = environment,
                        .command_line = given.command_line,
                        .code = given.code,
                        .machine = given.machine};
  if (!given.file.empty()) sources.file = folder.write("c.yaml", given.file);
  return inspect_config(sources);
}

}  // namespace

TEST_CASE("precedence is code, command line, environment, file, default; for each key by itself") {
  const std::string file = "distributed_type: MULTI_CPU\nnum_processes: 2\ngradient_accumulation_steps: 2\n";
  const std::vector<std::pair<std::string, std::string>> environment = {
      {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3"}};
  const std::vector<Override> line = {{"--gradient-accumulation-steps", "4"}};
  const std::vector<Override> code = {{"gradient_accumulation_steps", "5"}};
  const auto check = [](const Given& given, int64_t steps, Origin origin) {
    const Config config = merged(given).config;
    CHECK(config.gradient_accumulation_steps == steps);
    CHECK(config.origin_of("gradient_accumulation_steps").origin == origin);
    return config;
  };
  check({}, 1, Origin::kDefault);
  const Config from_file = check({.file = file}, 2, Origin::kFile);
  CHECK(from_file.origin_of("gradient_accumulation_steps").line == 3);
  CHECK(from_file.origin_of("num_processes").line == 2);
  check({.file = file, .environment = environment}, 3, Origin::kEnvironment);
  check({.file = file, .environment = environment, .command_line = line}, 4, Origin::kCommandLine);
  const Config all =
      check({.file = file, .environment = environment, .command_line = line, .code = code}, 5, Origin::kCode);
  // The other keys keep theirs.
  CHECK(all.num_processes == 2);
  CHECK(all.origin_of("num_processes").origin == Origin::kFile);
  CHECK(all.distributed_type == DistributedType::kMultiCpu);
  // An empty variable is not given.
  check({.file = file, .environment = {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", ""}}}, 2, Origin::kFile);
}

TEST_CASE("one flag changes one key") {
  const std::string file = "distributed_type: MULTI_CPU\nnum_processes: 3\nmain_process_port: 1234\n";
  const Config config = merged({.file = file, .command_line = {{"main_process_port", "29501"}}}).config;
  CHECK(config.main_process_port == 29501);
  CHECK(config.num_processes == 3);
}

TEST_CASE("every variable of the table sets its key") {
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr || row.environment.empty()) continue;
    INFO(row.name);
    std::string text = "7";
    if (row.type == ValueType::kBool) text = row.default_text == "true" ? "no" : "YES";
    if (row.type == ValueType::kWord) text = words_of(row.allowed).back();
    if (row.name == "fsdp_config.fsdp_version" || row.name == "deepspeed_config.zero_stage") text = "1";
    Config expected;
    REQUIRE(set_value(expected, row, text).error.empty());
    const std::string name = words_of(row.environment).front();
    const InspectedConfig found = merged({.environment = {{name, text}}});
    INFO(joined(found.problems));
    if (row.name != "num_processes") CHECK(value_text(found.config, row) == value_text(expected, row));
    CHECK(found.config.origin_of(row.name) == ValueOrigin{Origin::kEnvironment, name, 0});
  }
  // Names that HF Accelerate's launcher gives its children.
  const Config config = merged({.environment = {{"ACCELERATE_MIXED_PRECISION", "bf16"},
                                                {"ACCELERATE_USE_CPU", "True"},
                                                {"ACCELERATE_DEBUG_MODE", "true"},
                                                {"ACCELERATE_CPU_AFFINITY", "1"},
                                                {"ACCELERATE_DYNAMO_BACKEND", "NO"},
                                                {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block"},
                                                {"ACCELERATE_DEEPSPEED_ZERO3_INIT", "true"}}})
                            .config;
  CHECK(config.mixed_precision == MixedPrecision::kBf16);
  CHECK(config.use_cpu);
  CHECK(config.debug);
  CHECK(config.enable_cpu_affinity);
  CHECK(config.dynamo.backend == "no");
  CHECK(config.fsdp.transformer_layer_cls_to_wrap == "Block");
  CHECK(config.deepspeed.zero3_init_flag == true);
}

TEST_CASE("a bad variable or flag is named") {
  const auto errors = [](const Given& given) { return joined(merged(given).problems); };
  CHECK_THAT(
      errors({.environment = {{"ACCELERATE_NUM_PROCESSES", "many"}}}),
      ContainsSubstring("error environment ACCELERATE_NUM_PROCESSES: num_processes: expected an integer"));
  CHECK_THAT(errors({.environment = {{"ACCELERATE_USE_CPU", "perhaps"}}}),
             ContainsSubstring("ACCELERATE_USE_CPU"));
  CHECK_THAT(errors({.command_line = {{"num_processes", "x"}}}),
             ContainsSubstring("command line --num_processes"));
  CHECK_THAT(errors({.command_line = {{"cpu", "x"}}}), ContainsSubstring("command line --cpu: use_cpu"));
  CHECK_THAT(errors({.code = {{"num_proceses", "2"}}}), ContainsSubstring("Did you mean num_processes?"));
  CHECK_THAT(errors({.environment = {{"ACCELERATE_USE_FSDP", "maybe"}}}),
             ContainsSubstring("ACCELERATE_USE_FSDP"));
}

TEST_CASE("variables that switch a feature on ask for it") {
  CHECK(merged({.environment = {{"ACCELERATE_USE_FSDP", "true"}}}).config.distributed_type ==
        DistributedType::kFsdp);
  CHECK(merged({.environment = {{"ACCELERATE_USE_DEEPSPEED", "true"}}}).config.distributed_type ==
        DistributedType::kDeepSpeed);
  CHECK(merged({.environment = {{"ACCELERATE_USE_FSDP", "false"}}}).config.distributed_type ==
        DistributedType::kNo);
  const Config stronger =
      merged({.environment = {{"ACCELERATE_USE_FSDP", "true"}},
              .command_line = {{"distributed_type", "MULTI_CPU"}, {"num_processes", "2"}}})
          .config;
  CHECK(stronger.distributed_type == DistributedType::kMultiCpu);
  CHECK(
      has_errors(validate(merged({.environment = {{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}}}).config)));
}

TEST_CASE("without a word on how to spread, the number of processes and the machine decide") {
  const auto check = [](const Given& given, DistributedType type, int64_t processes, bool cpu) {
    const Config config = merged(given).config;
    CHECK(config.distributed_type == type);
    CHECK(config.num_processes == processes);
    CHECK(config.use_cpu == cpu);
    return config;
  };
  const std::vector<Override> two = {{"num_processes", "2"}};
  check({}, DistributedType::kNo, 1, false);
  const Config cpus = check({.command_line = two}, DistributedType::kMultiCpu, 2, true);
  CHECK(cpus.origin_of("distributed_type").origin == Origin::kDetected);
  CHECK_THAT(explain(cpus), ContainsSubstring("no CUDA device"));
  check({.command_line = two, .machine = gpu_box(4)}, DistributedType::kMultiGpu, 2, false);
  check({.command_line = {{"num_processes", "2"}, {"cpu", "true"}}, .machine = gpu_box(4)},
        DistributedType::kMultiCpu, 2, true);
  check({.machine = gpu_box(4)}, DistributedType::kMultiGpu, 4, false);
  check({.machine = gpu_box(1)}, DistributedType::kNo, 1, false);
  check({.command_line = {{"gpu_ids", "0,2"}}, .machine = gpu_box(4)}, DistributedType::kMultiGpu, 2, false);
  check({.command_line = {{"cpu", "true"}}, .machine = gpu_box(4)}, DistributedType::kNo, 1, true);
  // A file without the key: HF Accelerate refuses it, so it is said.
  const InspectedConfig found = merged({.file = "num_processes: 2\n"});
  CHECK(found.config.distributed_type == DistributedType::kMultiCpu);
  CHECK_THAT(joined(found.problems), ContainsSubstring("distributed_type: is not given; taking MULTI_CPU"));
}

TEST_CASE("a stronger wish goes over a file's value of another key") {
  const std::string gpus = "distributed_type: MULTI_GPU\nnum_processes: 2\n";
  const Config cpu = merged({.file = gpus, .command_line = {{"cpu", "true"}}}).config;
  CHECK(cpu.distributed_type == DistributedType::kMultiCpu);
  CHECK(cpu.num_processes == 2);
  CHECK_FALSE(has_errors(validate(cpu)));
  // In one and the same file it is a contradiction.
  const Config both = merged({.file = gpus + "use_cpu: true\n"}).config;
  CHECK(both.distributed_type == DistributedType::kMultiGpu);
  CHECK(has_errors(validate(both)));

  const std::string single = "distributed_type: NO\nnum_processes: 1\n";
  const InspectedConfig more = merged({.file = single, .command_line = {{"num_processes", "2"}}});
  CHECK(more.config.distributed_type == DistributedType::kMultiCpu);
  CHECK(more.config.num_processes == 2);
  CHECK_THAT(joined(more.problems), ContainsSubstring("starting 2 processes as MULTI_CPU"));
  CHECK(merged({.file = single, .command_line = {{"num_processes", "1"}}}).config.distributed_type ==
        DistributedType::kNo);
}

TEST_CASE("NO runs one process, whatever the file says, and says so with both numbers") {
  const InspectedConfig found = merged({.file = "distributed_type: NO\nnum_processes: 8\n"});
  CHECK(found.config.num_processes == 1);
  REQUIRE(found.problems.size() == 1);
  CHECK_THAT(
      describe(found.problems[0]),
      ContainsSubstring("c.yaml:2: num_processes: is 8, but distributed_type is NO: running 1 process"));
}

TEST_CASE("the default file: ours first, then HF Accelerate's") {
  const TempFolder folder;
  const std::string home = folder.path().string();
  EnvVars environment = variables({{"HOME", home}});
  CHECK_FALSE(find_default_config_file(environment).has_value());
  CHECK_FALSE(find_default_config_file(EnvVars()).has_value());
  const auto hf = folder.write(".cache/huggingface/accelerate/default_config.yaml", "distributed_type: NO\n");
  CHECK(find_default_config_file(environment) == hf.string());
  const auto hf_home = folder.write("hf/accelerate/default_config.yaml", "distributed_type: NO\n");
  environment.set("HF_HOME", home + "/hf");
  CHECK(find_default_config_file(environment) == hf_home.string());
  environment.unset("HF_HOME");
  const auto cache =
      folder.write("cache/huggingface/accelerate/default_config.json", "{\"distributed_type\": \"NO\"}");
  environment.set("XDG_CACHE_HOME", home + "/cache");
  CHECK(find_default_config_file(environment) == cache.string());
  const auto ours = folder.write(".config/accelerate/default_config.yaml", "distributed_type: NO\n");
  CHECK(find_default_config_file(environment) == ours.string());
  CHECK(default_save_path(environment) == ours.string());
  const auto xdg = folder.write("xdg/accelerate/default_config.yaml", "distributed_type: NO\n");
  environment.set("XDG_CONFIG_HOME", home + "/xdg");
  CHECK(find_default_config_file(environment) == xdg.string());
  // A named file is taken at its word, so that reading it can say that it is not there.
  environment.set("ACCELERATE_CONFIG_FILE", home + "/missing.yaml");
  CHECK(find_default_config_file(environment) == home + "/missing.yaml");
  CHECK(default_save_path(environment) == home + "/missing.yaml");
  CHECK_THROWS_AS(default_save_path(EnvVars()), ConfigError);
}

TEST_CASE("CUDA_VISIBLE_DEVICES limits what is counted") {
  const int all = detect_machine(EnvVars()).cuda_devices;
  CHECK(detect_machine(EnvVars()).cores >= 1);
  CHECK(detect_machine(variables({{"CUDA_VISIBLE_DEVICES", ""}})).cuda_devices == 0);
  CHECK(detect_machine(variables({{"CUDA_VISIBLE_DEVICES", "-1"}})).cuda_devices == 0);
  CHECK(detect_machine(variables({{"CUDA_VISIBLE_DEVICES", "0"}})).cuda_devices == std::min(all, 1));
}

TEST_CASE("the devices that CUDA_VISIBLE_DEVICES names are the machine's") {
  using Ids = std::vector<std::string>;
  CHECK(visible_ids("4,5", 8) == Ids{"4", "5"});
  CHECK(visible_ids(" 4 , 5 ", 8) == Ids{"4", "5"});
  CHECK(visible_ids("4,8,5", 8) == Ids{"4"});
  CHECK(visible_ids("4,-1,5", 8) == Ids{"4"});
  CHECK(visible_ids("GPU-1a,MIG-2b,5", 8) == Ids{"GPU-1a", "MIG-2b", "5"});
  CHECK(visible_ids("GPU-1a,GPU-2b", 1) == Ids{"GPU-1a"});
  CHECK(visible_ids("", 8).empty());
  CHECK(visible_ids("x", 8).empty());
  CHECK(visible_ids("0", 0).empty());
  const auto missing = [](MachineFacts machine, const Ids& ids) { return missing_devices(machine, ids); };
  CHECK(missing(gpu_box(2), {"0", "1", "GPU-1a"}).empty());
  CHECK(missing(gpu_box(2), {"0", "2"}) == Ids{"2"});
  CHECK(missing(gpu_box({"4", "5"}), {"5", "4"}).empty());
  CHECK(missing(gpu_box({"4", "5"}), {"0", "5", "GPU-1a"}) == Ids{"0", "GPU-1a"});
  CHECK(missing(gpu_box({"GPU-1a2b", "GPU-3c"}), {"GPU-1a2b", "GPU-3c4d"}).empty());
  CHECK(missing(gpu_box({"GPU-1a2b"}), {"GPU-1a"}).empty());
  CHECK(missing(gpu_box({"GPU-1a2b"}), {"0", "GPU-9"}) == Ids{"0", "GPU-9"});
  CHECK(missing(cpu_box(), {"0", "GPU-9"}) == Ids{"0", "GPU-9"});
}

TEST_CASE("a flag makes it unimportant what is wrong with the file's value, whatever that is") {
  const TempFolder folder;
  const EnvVars none;
  for (const char* bad : {"two", "010", "[2]", "[[2]]", "{n: 2}", "${N}", "-1", "1.5"}) {
    INFO(bad);
    const auto file =
        folder.write("c.yaml", concat("distributed_type: MULTI_CPU\nnum_processes: ", bad, "\n"));
    ConfigSources sources{.file = file, .environment = none, .machine = cpu_box()};
    CHECK_THROWS_AS(load_config(sources), ConfigError);
    sources.command_line.push_back({"num_processes", "2"});
    CHECK(load_config(sources).num_processes == 2);
  }
}
