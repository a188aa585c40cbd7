// What files look like in the wild: each rule on a small text of its own.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

Config taken(const std::string& text, const std::string& name = "c.yaml") {
  const InspectedConfig found = inspect_text(text, name);
  INFO(text);
  INFO(joined(found.problems));
  CHECK_FALSE(has_errors(found.problems));
  return found.config;
}

}  // namespace

TEST_CASE("NO in every spelling is one process, and no is a precision") {
  for (const char* word : {"NO", "no", "No", "'NO'", "\"NO\"", "'no'", "False", "false", "NO  # comment"}) {
    const Config config = taken(concat("distributed_type: ", word, "\nmixed_precision: no\n"));
    CHECK(config.distributed_type == DistributedType::kNo);
    CHECK(config.num_processes == 1);
    CHECK(config.mixed_precision == MixedPrecision::kNo);
  }
  CHECK(taken("distributed_type: NO\nmixed_precision: 'BF16'\n").mixed_precision == MixedPrecision::kBf16);
  CHECK(taken("distributed_type: NO\nmixed_precision: False\n").mixed_precision == MixedPrecision::kNo);
  CHECK(taken("distributed_type: multi_cpu\nnum_processes: 2\n").distributed_type ==
        DistributedType::kMultiCpu);
}

TEST_CASE("null, ~, nothing and an empty text mean not given") {
  for (const char* word : {"null", "~", "", "Null", "NULL", "''", "\"\"", "  # nothing"}) {
    const Config config =
        taken(concat("distributed_type: NO\nmain_process_ip: ", word, "\nmain_process_port: ", word,
                     "\ngpu_ids: ", word, "\nmixed_precision: ", word, "\ndeepspeed_config: ", word, "\n"));
    CHECK_FALSE(config.main_process_ip.has_value());
    CHECK_FALSE(config.main_process_port.has_value());
    CHECK_FALSE(config.gpu_ids.has_value());
    CHECK(config.mixed_precision == MixedPrecision::kNo);
    CHECK(config.nulls.at("main_process_ip").line == 2);
  }
  // A quoted null is a text.
  CHECK(taken("distributed_type: NO\nmain_process_ip: 'null'\n").main_process_ip == "null");
}

TEST_CASE("gpu_ids in every form") {
  using Ids = std::vector<std::string>;
  const auto ids = [](const std::string& text) {
    return taken(concat("distributed_type: MULTI_GPU\nnum_processes: 1\ngpu_ids: ", text, "\n")).gpu_ids;
  };
  CHECK_FALSE(ids("all").has_value());
  CHECK_FALSE(ids("ALL").has_value());
  CHECK(ids("0") == Ids{"0"});
  CHECK(ids("'0'") == Ids{"0"});
  CHECK(ids("0,1 #\"0\"") == Ids{"0", "1"});
  CHECK(ids("\"0, 1, 2, 3\"") == Ids{"0", "1", "2", "3"});
  CHECK(ids("6,7,") == Ids{"6", "7"});
  CHECK(ids("[0, 2]") == Ids{"0", "2"});
  CHECK(ids("GPU-8932f937,1") == Ids{"GPU-8932f937", "1"});
  const auto warnings =
      described(inspect_text("distributed_type: NO\ngpu_ids: 6,7,\n").problems, Severity::kWarning);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring("comma too many"));
  CHECK_THAT(refusal("distributed_type: NO\ngpu_ids: 1,1\n"), ContainsSubstring("device 1 is named twice"));
  CHECK_THAT(refusal("distributed_type: NO\ngpu_ids: first\n"), ContainsSubstring("c.yaml:2: gpu_ids"));
  CHECK_THAT(refusal("distributed_type: NO\ngpu_ids: '-1'\n"), ContainsSubstring("gpu_ids"));
  CHECK_THAT(refusal("distributed_type: NO\ngpu_ids: ','\n"), ContainsSubstring("gpu_ids"));
}

TEST_CASE("numbers as YAML 1.1 and JSON write them") {
  const Config config = taken(
      "distributed_type: FSDP\nnum_processes: 2\n"
      "fsdp_config:\n  min_num_params: 1e8\n  fsdp_sharding_strategy: 1\n");
  CHECK(config.fsdp.min_num_params == 100'000'000);
  CHECK(config.fsdp.sharding_strategy == "FULL_SHARD");
  CHECK(taken("distributed_type: MULTI_CPU\nnum_processes: 2.0\n").num_processes == 2);
  CHECK(taken("distributed_type: MULTI_CPU\nnum_processes: 08\n").num_processes == 8);
  CHECK_THAT(refusal("distributed_type: MULTI_CPU\nnum_processes: 2.5\n"),
             ContainsSubstring("c.yaml:2: num_processes: expected an integer from 1 to 1000000, got '2.5'"));
  CHECK_THAT(refusal("distributed_type: MULTI_CPU\nnum_processes: None\n"), ContainsSubstring("write null"));
  for (const char* bad : {"0", "-1", "two", "[1]", "{a: 1}", "99999999999999999999"}) {
    CHECK_THAT(refusal(concat("distributed_type: MULTI_CPU\nnum_processes: ", bad, "\n")),
               ContainsSubstring("c.yaml:2: num_processes"));
  }
  for (const char* bad : {"69420", "-1", "http"}) {
    CHECK_THAT(refusal(concat("distributed_type: NO\nmain_process_port: ", bad, "\n")),
               ContainsSubstring("expected an integer from 0 to 65535"));
  }
}

TEST_CASE("auto stands where DeepSpeed lets it stand, and nowhere else") {
  const Config config = taken(
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  gradient_clipping: \"auto\"\n"
      "  zero3_save_16bit_model: auto\n  gradient_accumulation_steps: 4\n  zero_stage: 3\n");
  REQUIRE(config.deepspeed.gradient_clipping.has_value());
  CHECK(config.deepspeed.gradient_clipping->is_auto());
  CHECK(config.deepspeed.zero3_save_16bit_model->is_auto());
  CHECK(config.deepspeed.gradient_accumulation_steps->value == 4);
  CHECK(config.deepspeed.zero_stage == 3);
  CHECK_THAT(refusal("distributed_type: MULTI_CPU\nnum_processes: auto\n"),
             ContainsSubstring("num_processes"));
}

TEST_CASE("old spellings are read, with a warning each") {
  const auto check = [](const std::string& text, const std::string& said) {
    const InspectedConfig found = inspect_text("distributed_type: MULTI_GPU\nnum_processes: 2\n" + text);
    INFO(text << joined(found.problems));
    CHECK_FALSE(has_errors(found.problems));
    REQUIRE_FALSE(found.problems.empty());
    CHECK_THAT(joined(found.problems), ContainsSubstring(said));
    return found.config;
  };
  CHECK(check("fp16: true\n", "today's is mixed_precision").mixed_precision == MixedPrecision::kFp16);
  CHECK(check("fp16: false\n", "today's is mixed_precision").mixed_precision == MixedPrecision::kNo);
  // What is said in today's words wins, wherever it stands.
  CHECK(check("fp16: true\nmixed_precision: bf16\n", "fp16").mixed_precision == MixedPrecision::kBf16);
  CHECK(check("mixed_precision: bf16\nfp16: true\n", "fp16").mixed_precision == MixedPrecision::kBf16);
  CHECK(check("dynamo_backend: INDUCTOR\n", "dynamo_config.dynamo_backend").dynamo.backend == "inductor");
  CHECK(check("dynamo_backend: False\n", "read as no").dynamo.backend == "no");
  CHECK(check("fsdp_config:\n  fsdp_backward_prefetch_policy: BACKWARD_PRE\n", "old name")
            .fsdp.backward_prefetch == "BACKWARD_PRE");
  check("ipex_config:\n  ipex: false\n", "ipex_config: key is ignored");
  check("use_ipex: false\n", "use_ipex: key is ignored");
  check("mpirun_config:\n  mpirun_ccl: 1\n", "mpirun_ccl: key is ignored");
  const InspectedConfig tpu = inspect_text("distributed_type: TPU\nnum_processes: 4\n");
  CHECK(tpu.config.distributed_type == DistributedType::kXla);
  CHECK_THAT(joined(tpu.problems), ContainsSubstring("read as XLA"));
  CHECK_THAT(refusal("distributed_type: NO\ndynamo_backend: 'yes'\n"), ContainsSubstring("got 'yes'"));
  CHECK(taken("distributed_type: NO\nparallelism_config:\n  tp_size: 2\n").parallelism.tp_size == 2);
  CHECK(taken("distributed_type: NO\nfp8_config:\n  backend: te\n  fp8_margin: 3\n").fp8.margin == 3);
}

TEST_CASE("unknown keys are all listed, with the nearest name") {
  const std::string message = refusal(
      "distributed_type: NO\nnum_proceses: 2\nmixed-precison: bf16\nfsdp_config:\n  fsdp_versoin: 2\n  "
      "colour: red\n");
  CHECK_THAT(message, ContainsSubstring("c.yaml:2: num_proceses: unknown key. Did you mean num_processes?"));
  CHECK_THAT(message,
             ContainsSubstring("c.yaml:3: mixed-precison: unknown key. Did you mean mixed_precision?"));
  CHECK_THAT(message, ContainsSubstring(
                          "c.yaml:5: fsdp_config.fsdp_versoin: unknown key. Did you mean fsdp_version?"));
  CHECK_THAT(message, ContainsSubstring("c.yaml:6: fsdp_config.colour: unknown key"));
  CHECK_THAT(message, ContainsSubstring("ACCELERATE_ALLOW_UNKNOWN_KEYS=true"));
  // A key of a block at the top level.
  CHECK_THAT(refusal("distributed_type: NO\nzero_stage: 2\n"),
             ContainsSubstring("deepspeed_config.zero_stage"));
  CHECK_THAT(refusal("distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  "
                     "zero_optimization:\n    stage: 2\n"),
             ContainsSubstring("deepspeed_config_file"));

  const TempFolder folder;
  const auto file = folder.write("c.yaml", "distributed_type: NO\ncolour: red\n");
  const EnvVars none;
  const EnvVars allowing = variables({{"ACCELERATE_ALLOW_UNKNOWN_KEYS", "true"}});
  CHECK_THROWS_AS(load_config({.file = file, .environment = none}), ConfigError);
  CHECK(load_config({.file = file, .environment = allowing}).load_warnings.size() == 1);
  CHECK(load_config({.file = file, .environment = none, .allow_unknown_keys = true}).load_warnings.size() ==
        1);
}

TEST_CASE("all problems of a file are reported together, with exit code 2") {
  const TempFolder folder;
  const EnvVars none;
  const auto file = folder.write("many.yaml",
                                 "distributed_type: MULTI_CPUS\nnum_processes: two\nuse_cpu: maybe\n"
                                 "compute_environment: MULTI_MACHINE\n");
  try {
    (void)load_config({.file = file, .environment = none});
    FAIL("not refused");
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    CHECK(error.exit_code() == 2);
    CHECK_THAT(text, ContainsSubstring("4 problems"));
    CHECK_THAT(text, ContainsSubstring("many.yaml:1: distributed_type: expected NO, MULTI_CPU"));
    CHECK_THAT(text, ContainsSubstring("Did you mean MULTI_CPU?"));
    CHECK_THAT(text, ContainsSubstring("many.yaml:2: num_processes"));
    CHECK_THAT(text, ContainsSubstring("many.yaml:3: use_cpu: expected true or false, got 'maybe'"));
    CHECK_THAT(text, ContainsSubstring("Write LOCAL_MACHINE, also for several machines"));
    // The wrong environment comes first: it makes other keys look wrong.
    CHECK(text.find("many.yaml:4") < text.find("many.yaml:1"));
  }
}

TEST_CASE("a key given twice") {
  CHECK_THAT(refusal("distributed_type: NO\ndebug: false\nnum_processes: 1\ndebug: true\n"),
             ContainsSubstring("c.yaml:4: debug: key is given twice, in lines 2 and 4"));
  const InspectedConfig same = inspect_text("distributed_type: NO\ndebug: true\ndebug: true\n");
  CHECK_FALSE(has_errors(same.problems));
  CHECK(same.problems.size() == 1);
  CHECK(same.config.debug);
  // Two spellings of one key are one key.
  CHECK_THAT(refusal("distributed_type: NO\nfsdp_config:\n  min_num_params: 1\n  fsdp_min_num_params: 2\n"),
             ContainsSubstring("given twice"));
  CHECK_THAT(refusal("{\"distributed_type\": \"NO\",\n\"debug\": true,\n\"debug\": false}", "c.json"),
             ContainsSubstring("c.json:3: debug: key is given twice, in lines 2 and 3"));
}

TEST_CASE("placeholders are recognised") {
  for (const char* text :
       {"${MASTER_ADDR}", "$MASTER_ADDR", "'xx.xx.xx.xx'", "<your ip>", "'{{ ip }}'", "$(hostname)"}) {
    CHECK_THAT(refusal(concat("distributed_type: NO\nmain_process_ip: ", text, "\n")),
               ContainsSubstring("placeholder; variables are not expanded"));
  }
  CHECK_THAT(refusal("distributed_type: NO\nmachine_rank: ${SLURM_NODEID}  # by SLURM\n"),
             ContainsSubstring("--machine_rank"));
  CHECK_THAT(refusal("distributed_type: NO\nmain_process_port: ${MASTER_PORT:-12345}\n"),
             ContainsSubstring("c.yaml:2: main_process_port"));
  CHECK_THAT(refusal("distributed_type: NO\nnum_processes: {{ n }}\n"),
             ContainsSubstring("c.yaml:2: 'num_processes: {{ n }}' is a template's placeholder"));
  // Given elsewhere, it does not matter what the file has in its place.
  const TempFolder folder;
  const EnvVars none;
  const auto file = folder.write("c.yaml", "distributed_type: NO\nmachine_rank: ${SLURM_NODEID}\n");
  CHECK(load_config({.file = file, .environment = none, .command_line = {{"machine_rank", "0"}}})
            .machine_rank == 0);
}

TEST_CASE("byte order mark, CRLF, document marks, no final newline") {
  for (const char* text : {"\xef\xbb\xbf"
                           "distributed_type: MULTI_CPU\nnum_processes: 3\n",
                           "distributed_type: MULTI_CPU\r\nnum_processes: 3\r\n",
                           "---\ndistributed_type: MULTI_CPU\nnum_processes: 3\n...\n",
                           "\n\ndistributed_type: MULTI_CPU\nnum_processes: 3",
                           "# \xec\x9d\xb4 comment\ndistributed_type:  MULTI_CPU   # \xe2\x86\x90\n\n   "
                           "\nnum_processes: 3 # #GPU\n",
                           "{\"distributed_type\": \"MULTI_CPU\",\n\t\"num_processes\": 3}",
                           "{distributed_type: MULTI_CPU, num_processes: 3}"}) {
    const Config config = taken(text);
    CHECK(config.distributed_type == DistributedType::kMultiCpu);
    CHECK(config.num_processes == 3);
  }
  CHECK(taken("distributed_type: NO\r\ndebug: true\r\n").origin_of("debug").line == 2);
}

TEST_CASE("anchors and merges have their YAML meaning") {
  const Config config = taken(
      "distributed_type: FSDP\nnum_processes: &n 4\ngradient_accumulation_steps: *n\n"
      "fsdp_config: &base\n  fsdp_version: 2\n  fsdp_offload_params: true\n"
      "deepspeed_config: {}\n");
  CHECK(config.num_processes == 4);
  CHECK(config.gradient_accumulation_steps == 4);
  const Config merged = taken(
      "fsdp_config:\n  <<: {fsdp_version: 2, fsdp_offload_params: true}\n  fsdp_offload_params: false\n"
      "distributed_type: FSDP\nnum_processes: 2\n");
  CHECK(merged.fsdp.version == 2);
  CHECK(merged.fsdp.offload_params == false);
  CHECK_THAT(refusal("distributed_type: *gone\n"), ContainsSubstring("c.yaml:1"));
}

TEST_CASE("text that is no configuration is refused with file and line") {
  const auto check = [](const std::string& text, const std::string& said,
                        const std::string& name = "c.yaml") {
    INFO(text.substr(0, 80));
    CHECK_THAT(refusal(text, name), ContainsSubstring(said));
  };
  check("", "is empty");
  check(" \n\n", "is empty");
  check("# nothing yet\n", "holds no keys");
  check("word\n", "c.yaml:1: a single text is no configuration");
  check("- a\n- b\n", "c.yaml:1: a list is no configuration. It should have lines");
  check("- distributed_type: NO\n- debug: false\n", "Remove the '- ' before the keys.");
  check("cat default_config.yaml\ndistributed_type: NO\n",
        "c.yaml:1: not YAML: 'cat default_config.yaml' is not 'key: value'");
  check("\tdistributed_type: NO\n", "c.yaml:1: a tab is used for indentation");
  check("distributed_type: FSDP\nfsdp_config:\n\tfsdp_version: 2\n", "c.yaml:3: a tab is used");
  check("distributed_type: NO\n---\nnum_processes: 2\n", "c.yaml:2: a second document begins here");
  check("distributed_type: NO\nmain_process_ip: \"10.0.0.1\nmachine_rank: 0\n",
        "c.yaml:2: the quote (\") that opens here");
  check("distributed_type: NO\nmain_process_ip: '10.0.0.1\nmachine_rank: 0\n", "c.yaml:2: the quote (')");
  check("distributed_type: [NO\nnum_processes: 1\n", "c.yaml:");
  check(std::string("distributed_type: NO\n\0\n", 23), "c.yaml:2: not a text file");
  check(std::string("\xff\xfe"
                    "d\0i\0",
                    6),
        "UTF-16");
  check("{\"distributed_type\": \"NO\",\n\"debug\": }", "c.json:2: not valid JSON", "c.json");
  check("{\"distributed_type\": \"NO\",}", "c.json:1: not valid JSON", "c.json");
  check("", "is empty", "c.json");
  check("[1, 2]", "a list is no configuration", "c.json");
  check("distributed_type: NO\nfsdp_config: yes\n", "c.yaml:2: fsdp_config: expected a block");
}

TEST_CASE("a closed quote is not taken for an open one") {
  CHECK(taken("distributed_type: 'NO' #'x\nmain_process_ip: 'it''s'\n").main_process_ip == "it's");
  CHECK(taken("distributed_type: \"NO\"\nmain_process_ip: \"a\\\"b\"\n").main_process_ip == "a\"b");
  CHECK(taken("# don't\ndistributed_type: 'NO'").distributed_type == DistributedType::kNo);
  CHECK(taken("\xef\xbb\xbf# \xec\x9d\xb4\ndistributed_type: 'NO'").distributed_type == DistributedType::kNo);
}

TEST_CASE("garbage is refused fast") {
  std::vector<std::string> texts = {std::string(1 << 20, '\xfe'), std::string(250'000, '['),
                                    std::string(250'000, 'a'), concat("\"", std::string(200'000, 'x'))};
  std::string deep;
  for (int i = 0; i < 30'000; ++i) deep += "{\"a\":";
  std::string keys;
  for (int i = 0; i < 20'000; ++i) keys += concat("k", i, ": 1\n");
  std::string aliases = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const char before = static_cast<char>(c - 1);
    aliases +=
        concat(c, ": &", c, " [*", before, ",*", before, ",*", before, ",*", before, ",*", before, "]\n");
  }
  texts.insert(texts.end(), {deep, keys, aliases, "- - - - - - -", std::string(100'000, '?')});
  for (const std::string& text : texts) {
    for (const char* name : {"c.yaml", "c.json"}) {
      INFO(text.substr(0, 20) << " as " << name);
      const auto begin = std::chrono::steady_clock::now();
      const std::string message = refusal(text, name);
      const auto took = std::chrono::steady_clock::now() - begin;
      CHECK_FALSE(message.empty());
      CHECK(message.size() < 10'000);
      // A hang, not a measurement: the parser alone needs milliseconds.
      CHECK(took < std::chrono::seconds(20));
    }
  }
}

TEST_CASE("files that can't be read") {
  const TempFolder folder;
  const EnvVars none;
  const auto message = [&](const std::filesystem::path& path) -> std::string {
    try {
      (void)load_config({.file = path, .environment = none});
    } catch (const ConfigError& error) {
      CHECK(error.exit_code() == 2);
      return error.what();
    }
    return "taken";
  };
  folder.write("multi_cpu.yaml", "distributed_type: NO\n");
  CHECK_THAT(message(folder.path() / "multi_cpus.yaml"), ContainsSubstring("does not exist"));
  CHECK_THAT(message(folder.path() / "multi_cpus.yaml"), ContainsSubstring("Did you mean"));
  CHECK_THAT(message(folder.path() / "no" / "such"), ContainsSubstring("accel config --config_file"));
  CHECK_THAT(message(folder.path()), ContainsSubstring("is a directory"));
  const auto fifo = folder.path() / "pipe";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THAT(message(fifo), ContainsSubstring("is empty"));
  const auto secret = folder.write("secret.yaml", "distributed_type: NO\n");
  REQUIRE(::chmod(secret.c_str(), 0) == 0);
  // The administrator may read everything.
  if (::geteuid() != 0) CHECK_THAT(message(secret), ContainsSubstring("Permission denied"));
}

TEST_CASE("a line that does not fit the one above it is told in those words") {
  const auto check = [](const std::string& text, const std::string& expected) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(expected));
  };
  check("distributed_type:MULTI_CPU\nnum_processes: 2\n", "c.yaml:1: not YAML: no blank after the colon");
  check("distributed_type:\xc2\xa0MULTI_CPU\nnum_processes: 2\n",
        "c.yaml:1: not YAML: no blank after the colon");
  check("distributed_type: NO\n  num_processes: 2\n",
        "c.yaml:2: not YAML: 'num_processes: 2' is indented deeper than line 1 ('distributed_type: NO')");
  check("deepspeed_config:\ndeepspeed_config_file: a.json\n# note\n  zero3_init_flag: false\n",
        "c.yaml:4: not YAML: 'zero3_init_flag: false' is indented deeper than line 2");
  check(" distributed_type: NO\nnum_processes: 2\n",
        "c.yaml:2: not YAML: 'num_processes: 2' does not belong to the lines above it");
  check("{% if x %}\ndistributed_type: NO\n{% endif %}\n",
        "c.yaml:1: '{% if x %}' is a template's placeholder");
  check(concat("a: ", std::string(5000, '['), std::string(5000, ']'), "\n"), "c.yaml:1: nested too deeply");
}

TEST_CASE("lines may end with a carriage return alone") {
  const auto found = inspect_text("distributed_type: MULTI_CPU\rnum_processes: 2\r");
  INFO(joined(found.problems));
  CHECK(found.problems.empty());
  CHECK(found.config.num_processes == 2);
}

TEST_CASE("where JSON is not JSON, the hint is about what stands there") {
  const auto check = [](const std::string& text, const std::string& expected) {
    INFO(text);
    CHECK_THAT(refusal(text, "c.json"), ContainsSubstring(expected));
  };
  check("{\"debug\": true,\n}", "c.json:2: not valid JSON");
  check("{\"debug\": true,\n}", "Remove the comma before it.");
  check("{\"commands\": [\"a\", ]}", "Remove the comma before it.");
  check("{\"debug\": True}", "true and false in small letters");
  check("{\"debug\": None}", "JSON writes null");
  check("{'debug': true}", "double quotes only");
  check("{ // mine\n}", "JSON has no comments.");
  check("{\"debug\": true\n\"use_cpu\": true}", "Is a comma missing before it?");
  check("{\"num_processes\": 1e999}", "c.json:1: not valid JSON: number overflow parsing '1e999'");
  check("distributed_type: NO\n", "YAML belongs into a file called .yaml");
  const std::string deep = refusal(std::string(5000, '['), "c.json");
  CHECK_THAT(deep, ContainsSubstring("nested too deeply"));
  CHECK(deep.find("comma") == std::string::npos);
}

TEST_CASE("a whole number that other YAML readers take in base 8 is refused, not guessed") {
  CHECK_THAT(
      refusal("distributed_type: MULTI_CPU\nnum_processes: 010\n"),
      ContainsSubstring("c.yaml:2: num_processes: '010' begins with 0 and is 8 to other readers of YAML"));
  for (const char* fine : {"'010'", "08", "01", "007", "10"}) {
    INFO(fine);
    CHECK(refusal(concat("distributed_type: MULTI_CPU\nnum_processes: ", fine, "\n")).empty());
  }
}

TEST_CASE("Python's None in place of a text means not given") {
  for (const char* word : {"None", "none", "'none'", "NONE"}) {
    const auto found =
        inspect_text(concat("distributed_type: DEEPSPEED\nnum_processes: 2\nmain_process_ip: ", word,
                            "\ndeepspeed_config:\n  deepspeed_config_file: ", word, "\n"));
    INFO(word << "\n" << joined(found.problems));
    CHECK(found.problems.empty());
    CHECK_FALSE(found.config.main_process_ip.has_value());
    CHECK_FALSE(found.config.deepspeed.config_file.has_value());
  }
  const auto found =
      inspect_text("distributed_type: MULTI_CPU\nnum_processes: 2\nnum_machines: 2\nmain_process_ip: None\n");
  CHECK_THAT(joined(validate(found.config)),
             ContainsSubstring("main_process_ip: is null with num_machines 2"));
}

TEST_CASE("of thousands of unknown keys some are named, and the rest is counted") {
  std::string text = "distributed_type: NO\n";
  for (int i = 0; i < 3000; ++i) text += concat("colour", i, ": red\n");
  const InspectedConfig found = inspect_text(text);
  CHECK(found.problems.size() == 26);
  CHECK_THAT(joined(found.problems), ContainsSubstring("c.yaml:27: 2975 more unknown keys from here on"));
  CHECK_THAT(refusal(text), ContainsSubstring("ACCELERATE_ALLOW_UNKNOWN_KEYS=true"));
}

TEST_CASE("slips are told with what to write") {
  CHECK_THAT(refusal("num_processes:2\n"), ContainsSubstring("c.yaml:1: no blank after the colon in"));
  CHECK_THAT(refusal("distributed_type:NO\nnum_processes:2\n"),
             ContainsSubstring("a blank after the colon."));
  CHECK_THAT(refusal("fsdp_config:\n\tfsdp_version: 2\n", "a b.yaml"), ContainsSubstring("/a b.yaml'"));
  CHECK_THAT(refusal("{\"num_processes\": 1, \"num_processes\": 2}", "c.json"),
             ContainsSubstring("key is given twice, in line 1. Keep one of them."));
  CHECK_THAT(refusal("num_processes: 1\nnum_processes: 2\n"), ContainsSubstring("in lines 1 and 2"));
}

TEST_CASE("unknown keys are not likened to what only looks alike, and say where such keys belong") {
  const auto check = [](const std::string& line, const std::string& expected, const std::string& absent) {
    const std::string text = refusal(concat("distributed_type: NO\n", line, "\n"));
    INFO(text);
    CHECK_THAT(text, ContainsSubstring(expected));
    if (!absent.empty()) CHECK(text.find(absent) == std::string::npos);
  };
  check("kt_config: {a: 1}", "kt_config: unknown key", "Did you mean");
  check("fdsp_config: {}", "Did you mean fsdp_config?", {});
  check("megatron_lm_tp_size: 4", "stand indented below megatron_lm_config", "Did you mean");
  check("megatron_lm_confg: {}", "Did you mean megatron_lm_config?", {});
  check("fsdp_version: 2", "Did you mean fsdp_config.fsdp_version?", {});
  check("deepspeed_config: {train_batch_size: 4}", "go into a JSON file named by deepspeed_config_file", {});
  check("'': 3", "c.yaml:2: '': unknown key", {});
}

TEST_CASE("names that other tools have for a value get the right one as a hint") {
  const auto check = [](const std::string& text, const std::string& expected) {
    INFO(text);
    CHECK_THAT(refusal(text), ContainsSubstring(expected));
  };
  check("distributed_type: DDP\n", "Data parallel is MULTI_GPU, or MULTI_CPU.");
  check("distributed_type: NO\nmixed_precision: bfloat16\n", "Write bf16.");
  check("distributed_type: NO\nmixed_precision: float16\n", "Write fp16.");
  check("distributed_type: NO\nmixed_precision: fp32\n", "Full precision is no.");
  check("distributed_type: NO\ncompute_environment: SLURM\n", "Write LOCAL_MACHINE");
  check("distributed_type: FSDP\nfsdp_config:\n- fsdp_version: 2\n", "got a list (lines with '-')");
}

TEST_CASE("a link to nowhere, and a missing file beside others that only share its extension") {
  const TempFolder folder;
  const EnvVars none;
  const auto refused = [&](const std::string& name) {
    try {
      (void)load_config({.file = folder.path() / name, .environment = none, .machine = cpu_box()});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  folder.write("long.yaml", "x");
  std::filesystem::create_symlink("gone.yaml", folder.path() / "link.yaml");
  CHECK_THAT(refused("link.yaml"), ContainsSubstring("is a link to gone.yaml, which does not exist"));
  CHECK(refused("nope.yaml").find("Did you mean") == std::string::npos);
  CHECK_THAT(refused("longs.yml"),
             ContainsSubstring(concat("Did you mean ", (folder.path() / "long.yaml").string())));
}

TEST_CASE("counts beyond any job are refused, so that none is cut off later") {
  CHECK_THAT(refusal("distributed_type: MULTI_CPU\nnum_processes: 9007199254740993\n"),
             ContainsSubstring("expected an integer from 1 to 1000000"));
  CHECK_THAT(refusal("distributed_type: MULTI_CPU\nnum_machines: 9007199254740993\n"),
             ContainsSubstring("expected an integer from 1 to 100000,"));
}

TEST_CASE("messages show no control characters, and no halves of characters") {
  const std::string text = refusal(
      "distributed_type: \"N\xc2\x9b"
      "31mO\"\n");
  CHECK_THAT(text, ContainsSubstring("got 'N?31mO'"));
  const std::string letters(79, 'a');
  CHECK_THAT(refusal(concat("distributed_type: ", letters, "\xe4\xb8\xad\xe4\xb8\xad\n")),
             ContainsSubstring(letters + "...'"));
}
