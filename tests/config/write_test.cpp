#include <algorithm>

#include "accelerate/config/schema.h"
#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

// A value for every key that is not its default.
Config with_all_keys() {
  Config config;
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr) continue;
    std::string text;
    switch (row.type) {
      case ValueType::kBool:
        text = row.default_text == "true" ? "false" : "true";
        break;
      case ValueType::kInt:
        text = row.allowed == "1..2" || row.allowed == "0..3" ? "2" : "6";
        break;
      case ValueType::kNumber:
        text = "0.25";
        break;
      case ValueType::kWord:
        text = words_of(row.allowed).back();
        if (row.name == "distributed_type") text = "MULTI_CPU";
        break;
      case ValueType::kText:
        text = concat("it's: #", row.leaf());
        if (row.name == "main_process_ip") text = "10.0.0.1";
        break;
      case ValueType::kList:
        text = "a,b c";
        break;
      case ValueType::kGpuIds:
        text = "0,2";
        break;
      case ValueType::kBlock:
        break;
    }
    INFO(row.name);
    REQUIRE(set_value(config, row, text).error.empty());
    config.origins[std::string(row.name)] = {Origin::kCode, "test", 0};
  }
  return config;
}

}  // namespace

TEST_CASE("every key comes back from YAML and from JSON, and the second write has the same bytes") {
  const Config config = with_all_keys();
  const InspectedConfig yaml = inspect_text(write_yaml(config));
  INFO(write_yaml(config) << joined(yaml.problems));
  CHECK_FALSE(has_errors(yaml.problems));
  CHECK(differing_keys(yaml.config, config).empty());
  CHECK(write_yaml(yaml.config) == write_yaml(config));
  const InspectedConfig json = inspect_text(write_json(config), "c.json");
  INFO(write_json(config) << joined(json.problems));
  CHECK_FALSE(has_errors(json.problems));
  CHECK(differing_keys(json.config, config).empty());
  CHECK(write_json(json.config) == write_json(config));
}

TEST_CASE("the form is HF Accelerate's") {
  const Config config = inspect_text(
                            "use_cpu: false\ndistributed_type: NO\nmixed_precision: no\ntpu_env: []\n"
                            "fsdp_config: {}\nmain_process_ip: null\ngpu_ids: 0,1\n"
                            "deepspeed_config:\n  zero_stage: 3\n  gradient_clipping: 1\n")
                            .config;
  CHECK(write_yaml(config) ==
        "compute_environment: LOCAL_MACHINE\n"
        "debug: false\n"
        "deepspeed_config:\n"
        "  gradient_clipping: 1.0\n"
        "  zero_stage: 3\n"
        "distributed_type: 'NO'\n"
        "gpu_ids: '0,1'\n"
        "machine_rank: 0\n"
        "mixed_precision: 'no'\n"
        "num_machines: 1\n"
        "num_processes: 1\n"
        "rdzv_backend: static\n"
        "same_network: false\n"
        "tpu_env: []\n"
        "use_cpu: false\n");
}

TEST_CASE("a text survives whatever it holds") {
  for (const std::string text :
       {"no",          "NO", "null", "~",     "1",   "1e8",  "0x10",      "0,1",
        "a: b",        "#x", "it's", "\"q\"", "{x}", "[x]",  "*a",        "&a",
        "!t",          "%x", "@x",   "-",     "- a", "a\nb", "tab\there", "\xec\x9d\xb4",
        "back\\slash", "y",  "on",   "true",  "=",   "<<",   "a b",       "/data/x.json",
        "-1",          ".5"}) {
    Config config;
    config.distributed_type = DistributedType::kMultiCpu;
    config.num_processes = 2;
    config.deepspeed.hostfile = text;
    config.tpu.commands = {text, "x,y"};
    for (const char* key : {"deepspeed_config.deepspeed_hostfile", "commands"}) {
      config.origins[key] = {Origin::kCode, "test", 0};
    }
    const InspectedConfig yaml = inspect_text(write_yaml(config));
    INFO(write_yaml(config) << joined(yaml.problems));
    CHECK(yaml.config.deepspeed.hostfile == text);
    CHECK(yaml.config.tpu.commands == config.tpu.commands);
    const InspectedConfig json = inspect_text(write_json(config), "c.json");
    INFO(write_json(config) << joined(json.problems));
    CHECK(json.config.deepspeed.hostfile == text);
    CHECK(json.config.tpu.commands == config.tpu.commands);
  }
}

TEST_CASE("keys are sorted, and equal values give equal bytes whatever the order of the file") {
  const std::string a =
      write_yaml(inspect_text("num_processes: 2\ndistributed_type: MULTI_CPU\ndebug: true\n").config);
  const std::string b =
      write_yaml(inspect_text("debug: yes\ndistributed_type: multi_cpu\nnum_processes: 2.0\n").config);
  CHECK(a == b);
  std::vector<std::string> keys = split(a, '\n');
  CHECK(std::is_sorted(keys.begin(), keys.end() - 1));
}

TEST_CASE("explain gives each value with its origin, one a line") {
  const TempFolder folder;
  const auto file = folder.write(
      "c.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n");
  const EnvVars environment = variables({{"ACCELERATE_DEBUG_MODE", "1"}});
  const std::string text = explain(load_config({.file = file,
                                                .environment = environment,
                                                .command_line = {{"main_process_port", "0"}},
                                                .code = {{"gradient_accumulation_steps", "4"}},
                                                .machine = cpu_box()}));
  const auto line = [&](const std::string& key) {
    for (const std::string& each : split(text, '\n')) {
      if (each.starts_with(key + ":")) return each;
    }
    return std::string("none");
  };
  CHECK_THAT(line("num_processes"), ContainsSubstring("num_processes: 2 "));
  CHECK_THAT(line("num_processes"), ContainsSubstring(concat("# file ", file.string(), ":2")));
  CHECK_THAT(line("debug"), ContainsSubstring("true"));
  CHECK_THAT(line("debug"), ContainsSubstring("# environment ACCELERATE_DEBUG_MODE"));
  CHECK_THAT(line("main_process_port"), ContainsSubstring("# command line --main_process_port"));
  CHECK_THAT(line("gradient_accumulation_steps"), ContainsSubstring("# code gradient_accumulation_steps"));
  CHECK_THAT(line("use_cpu"), ContainsSubstring("# detected: distributed_type MULTI_CPU"));
  CHECK_THAT(line("num_machines"), ContainsSubstring("# default"));
  CHECK_THAT(line("fsdp_config.fsdp_version"), ContainsSubstring(":4"));
  CHECK_THAT(line("main_process_ip"), ContainsSubstring("(not given)"));
  CHECK(line("tpu_name") == "none");
}

TEST_CASE("the ready files load, and fit the machine that they are for") {
  const std::filesystem::path folder = std::string(ACCELERATE_TEST_SOURCE_DIR) + "/configs";
  const EnvVars none;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const std::string name = entry.path().filename().string();
    const MachineFacts machine = name.find("gpu") == std::string::npos ? cpu_box(4) : gpu_box(8);
    const Config config = load_config({.file = entry.path(), .environment = none, .machine = machine});
    const auto problems = validate(config);
    INFO(name << joined(problems));
    CHECK(problems.empty());
    const auto expect = [&](const char* file, DistributedType type, int64_t processes) {
      if (name != file) return;
      CHECK(config.distributed_type == type);
      CHECK(config.num_processes == processes);
    };
    expect("single.yaml", DistributedType::kNo, 1);
    expect("multi_cpu_2.yaml", DistributedType::kMultiCpu, 2);
    expect("multi_cpu_4.yaml", DistributedType::kMultiCpu, 4);
    expect("multi_cpu_2_machines.yaml", DistributedType::kMultiCpu, 8);
    expect("multi_gpu_8.yaml", DistributedType::kMultiGpu, 8);
    CHECK(read_file(entry.path()).starts_with("# "));
  }
  CHECK(count >= 5);
}
