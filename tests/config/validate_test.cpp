// Counts that do not fit, features that are not there, machines that lack what was asked for.
#include "config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

struct Checked {
  std::vector<Problem> problems;
  std::string text;

  bool has(Severity severity, const std::string& part) const {
    for (const Problem& problem : problems) {
      if (problem.severity == severity && describe(problem).find(part) != std::string::npos) return true;
    }
    return false;
  }
  bool error(const std::string& part) const { return has(Severity::kError, part); }
  bool warning(const std::string& part) const { return has(Severity::kWarning, part); }
};

Checked checked(const std::string& text, MachineFacts machine = cpu_box(),
                ValidateFor purpose = ValidateFor::kLaunch) {
  const InspectedConfig found = inspect_text(text, "c.yaml", machine);
  Checked out;
  for (const Problem& problem : found.problems) {
    if (problem.severity == Severity::kError) out.problems.push_back(problem);
  }
  for (const Problem& problem : validate(found.config, purpose)) out.problems.push_back(problem);
  out.text = joined(out.problems);
  return out;
}

const std::string kGpu = "distributed_type: MULTI_GPU\n";
const std::string kCpu = "distributed_type: MULTI_CPU\n";
const std::string kNo = "distributed_type: NO\n";

}  // namespace

TEST_CASE("what works today has no errors") {
  for (const auto& [text, machine] : std::vector<std::pair<std::string, MachineFacts>>{
           {kNo, cpu_box()},
           {kNo + "num_processes: 1\ndebug: true\nmain_process_port: 0\n", cpu_box()},
           {kNo + "gpu_ids: '0'\n", gpu_box(1)},
           {kCpu + "num_processes: 2\n", cpu_box()},
           {kCpu + "num_processes: 2\nenable_cpu_affinity: true\n", cpu_box()},
           {kCpu + "num_processes: 2\nmpirun_config:\n  mpirun_hostfile: /h\n", cpu_box()},
           {kCpu + "num_processes: 4\nnum_machines: 2\nmpirun_config:\n  mpirun_hostfile: /h\n", cpu_box()},
           {kCpu + "num_processes: 4\nmain_process_ip: 127.0.0.1\nmain_process_port: 29500\nrdzv_backend: "
                   "static\n",
            cpu_box()},
           {kCpu + "num_processes: 2\ngradient_accumulation_steps: 8\nnum_machines: 1\nmachine_rank: 0\n",
            cpu_box()},
           {kCpu + "num_processes: 4\nnum_machines: 2\nmachine_rank: 1\nmain_process_ip: node0\n"
                   "main_process_port: 29500\nsame_network: true\nrdzv_backend: static\n",
            cpu_box()},
           {kCpu + "num_processes: 2\nnum_machines: 2\nmain_process_ip: node0\nrdzv_backend: c10d\n",
            cpu_box()},
           {kGpu + "num_processes: 4\nnum_machines: 2\nmain_process_ip: node0\ngpu_ids: 0,1\n", gpu_box(2)},
           {kGpu + "num_processes: 2\n", gpu_box(2)},
           {kGpu + "num_processes: 2\ngpu_ids: 1,3\n", gpu_box(4)}}) {
    const Checked found = checked(text, machine);
    INFO(text << found.text);
    CHECK_FALSE(has_errors(found.problems));
  }
  const Checked plain = checked(kCpu + "num_processes: 2\n");
  INFO(plain.text);
  CHECK(plain.problems.empty());
}

TEST_CASE("counts that do not fit are refused with both numbers") {
  const auto refused = [](const std::string& text, const std::string& said,
                          MachineFacts machine = cpu_box()) {
    const Checked found = checked(text, machine);
    INFO(text << found.text);
    CHECK(found.error(said));
  };
  refused(kCpu + "num_processes: 0\n", "num_processes: expected an integer from 1 to 1000000, got '0'");
  refused(kCpu + "num_processes: -1\n", "num_processes: expected an integer from 1 to 1000000, got '-1'");
  refused(kCpu, "num_processes: is needed with distributed_type MULTI_CPU");
  refused(kCpu + "num_processes: 3\nnum_machines: 2\n",
          "3 processes can't be shared out evenly over num_machines 2");
  refused(kCpu + "num_processes: 1\nnum_machines: 2\n", "1 process for num_machines 2");
  refused(kCpu + "num_processes: 1000\n", "1000 processes on a machine with 4 cores");
  refused(kCpu + "num_processes: 4\nnum_machines: 2\n", "main_process_ip: is not given with num_machines 2");
  refused(kCpu + "num_processes: 4\nnum_machines: 2\nmachine_rank: 5\nmain_process_ip: 10.0.0.1\n",
          "machine_rank: is 5 with num_machines 2");
  refused(kCpu + "num_processes: 4\nnum_machines: 2\nmain_process_ip: 10.0.0.1\nmain_process_port: 0\n",
          "main_process_port: is 0 (any free one) with num_machines 2");
  refused(kGpu + "num_processes: 4\ngpu_ids: 0,1\n", "names 2 devices (0,1) for 4 processes", gpu_box(8));
  refused(kGpu + "num_processes: 4\n", "4 processes on this machine, but it has 2 CUDA devices", gpu_box(2));
  refused(kGpu + "num_processes: 2\ngpu_ids: 0,7\n", "device 7 does not exist: this machine has 2",
          gpu_box(2));
  refused(kGpu + "num_processes: 2\n", "no CUDA device found; use --cpu");
  refused(kNo + "gpu_ids: 0,1\n", "gpu_ids: 0,1, but no CUDA device found; use --cpu");
  refused(kGpu + "num_processes: 2\nuse_cpu: true\n", "use_cpu: is true with distributed_type MULTI_GPU",
          gpu_box(2));
}

TEST_CASE("counts that are odd are warned about") {
  const auto warned = [](const std::string& text, const std::string& said, MachineFacts machine = cpu_box()) {
    const Checked found = checked(text, machine);
    INFO(text << found.text);
    CHECK(found.warning(said));
    CHECK_FALSE(has_errors(found.problems));
  };
  warned(kNo + "num_processes: 2\n", "is 2, but distributed_type is NO: running 1 process");
  warned(kGpu + "num_processes: 1\n", "num_processes: is 1 with distributed_type MULTI_GPU", gpu_box(1));
  warned(kCpu + "num_processes: 8\n", "8 processes on a machine with 4 cores");
  warned(kCpu + "num_processes: 2\nmain_process_port: 80\n", "80 is a privileged port");
  warned(kNo + "main_process_port: 29500\n", "no effect with distributed_type NO");
  warned(kCpu + "num_processes: 2\ngpu_ids: 0\n", "gpu_ids: 0 is ignored on the CPU");
}

TEST_CASE("gpu_ids are chosen among the devices that CUDA_VISIBLE_DEVICES shows") {
  const auto text = [](const char* ids) { return concat(kGpu, "num_processes: 2\ngpu_ids: ", ids, "\n"); };
  for (const auto& [ids, visible] : std::vector<std::pair<const char*, std::vector<std::string>>>{
           {"4,5", {"4", "5"}},
           {"5,4", {"4", "5", "6"}},
           {"0,1", {"1", "0"}},
           {"'GPU-1a,GPU-2b'", {"GPU-1a00", "GPU-2b00"}},
           {"'GPU-1a,6'", {"6", "GPU-1a"}}}) {
    const Checked found = checked(text(ids), gpu_box(visible));
    INFO(ids << found.text);
    CHECK(found.problems.empty());
  }
  const Checked other = checked(text("0,1"), gpu_box({"4", "5"}));
  INFO(other.text);
  CHECK(other.error("asks for devices 0,1, but CUDA_VISIBLE_DEVICES shows 4,5 only"));
  CHECK(other.error("choose among 4,5."));
  CHECK(other.problems.size() == 1);
  CHECK(checked(text("0,5"), gpu_box({"4", "5"})).error("asks for device 0, but"));
  CHECK(checked(text("0,1"), gpu_box({"GPU-1a", "GPU-2b"})).error("shows GPU-1a,GPU-2b only"));
  CHECK(checked(text("'GPU-3,GPU-1a'"), gpu_box({"GPU-1a", "GPU-2b"})).error("asks for device GPU-3"));
}

TEST_CASE("MULTI_GPU on one machine has a process a device, unless somebody says otherwise") {
  const auto count = [](const std::string& text, const MachineFacts& machine) {
    return inspect_text(text, "c.yaml", machine).config.num_processes;
  };
  CHECK(count(kGpu, gpu_box(8)) == 8);
  CHECK(count(kGpu, gpu_box({"4", "5"})) == 2);
  CHECK(count(kGpu + "gpu_ids: 0,3,4\n", gpu_box(8)) == 3);
  CHECK(count(kGpu + "num_processes: 2\n", gpu_box(8)) == 2);
  CHECK_FALSE(count(kGpu + "num_machines: 2\n", gpu_box(8)));
  CHECK(checked(kGpu, gpu_box(8)).problems.empty());
  CHECK(
      checked(kGpu + "num_machines: 2\nmain_process_ip: a\n", gpu_box(8)).error("num_processes: is needed"));
  // One problem where there is one.
  const Checked cpu = checked(kGpu + "use_cpu: true\n", gpu_box(8));
  INFO(cpu.text);
  CHECK(cpu.error("use_cpu: is true with distributed_type MULTI_GPU"));
  CHECK(cpu.problems.size() == 1);
  const Checked none = checked(kGpu);
  INFO(none.text);
  CHECK(none.error("no CUDA device found; use --cpu"));
  CHECK(none.problems.size() == 1);
}

TEST_CASE("addresses") {
  const auto taken = [](const std::string& ip) {
    return !checked(concat(kCpu, "num_processes: 2\nmain_process_ip: ", ip, "\n")).error("main_process_ip");
  };
  for (const char* good : {"10.0.0.1", "'::1'", "node1", "gpu-3.cluster.local", "localhost", "trainer_0"}) {
    INFO(good);
    CHECK(taken(good));
  }
  for (const char* bad : {"'1234'", "0", "10.0.0.256", "'a b'", "http://x", "'-x'", "10.0.0"}) {
    INFO(bad);
    CHECK_FALSE(taken(bad));
  }
}

TEST_CASE("what is not there yet is refused by name, when asked for") {
  const auto refused = [](const std::string& text, const std::string& said) {
    const Checked found = checked(text);
    INFO(text << found.text);
    CHECK(found.error("not supported yet: " + said));
    bool unsupported = false;
    for (const Problem& problem : found.problems) {
      unsupported = unsupported || problem.kind == ProblemKind::kUnsupported;
    }
    CHECK(unsupported);
  };
  refused(kNo + "mixed_precision: fp8\n", "mixed_precision fp8");
  refused("distributed_type: FSDP\nnum_processes: 2\n", "distributed_type FSDP");
  refused("distributed_type: DEEPSPEED\nnum_processes: 2\n", "distributed_type DEEPSPEED");
  refused("distributed_type: MEGATRON_LM\nnum_processes: 2\n", "distributed_type MEGATRON_LM");
  refused("distributed_type: XLA\nnum_processes: 2\n", "distributed_type XLA");
  refused("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n",
          "compute_environment AMAZON_SAGEMAKER");
  refused(kCpu + "num_processes: 4\nnum_machines: 2\nmain_process_ip: 10.0.0.1\nrdzv_backend: etcd\n",
          "rdzv_backend etcd");
  refused(kCpu + "num_processes: 2\nparallelism_config:\n  parallelism_config_tp_size: 2\n",
          "parallelism_config (tp_size 2)");
  // Not asked for.
  for (const char* text :
       {"enable_cpu_affinity: false\n", "rdzv_backend: c10d\n", "parallelism_config:\n  tp_size: 1\n",
        "fsdp_config: {}\n", "mixed_precision: 'no'\n", "tpu_use_cluster: false\n", "same_network: true\n"}) {
    const Checked found = checked(kCpu + "num_processes: 2\n" + text);
    INFO(found.text);
    CHECK(found.problems.empty());
  }
}

TEST_CASE("blocks that have no part are warned about, and their files are not opened") {
  const auto warned = [](const std::string& text, const std::string& said) {
    const Checked found = checked(text, gpu_box(2));
    INFO(text << found.text);
    CHECK(found.warning(said));
    CHECK_FALSE(has_errors(found.problems));
  };
  warned(kGpu + "num_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: path/to/be/ignored\n",
         "deepspeed_config: ignored under MULTI_GPU");
  warned(kNo + "fsdp_config:\n  fsdp_version: 2\n", "fsdp_config: ignored under NO");
  warned(kNo + "fp8_config:\n  backend: TE\n", "fp8_config: ignored under mixed_precision no");
  warned(kNo + "megatron_lm_config:\n  megatron_lm_tp_degree: 2\n", "megatron_lm_config: ignored under NO");
  warned(kNo + "dynamo_config:\n  dynamo_backend: INDUCTOR\n",
         "inductor is ignored: C++ has no torch.compile");
  // Variables of another job's launcher are nobody's mistake.
  const EnvVars environment = variables({{"FSDP_VERSION", "2"}});
  CHECK(validate(load_config({.file = std::nullopt, .environment = environment, .machine = cpu_box()}))
            .empty());
}

namespace {

// What a launch with these flags says, on a machine without devices.
std::string said_to(std::vector<Override> flags) {
  const EnvVars none;
  const InspectedConfig found = inspect_config(
      {.file = std::nullopt, .environment = none, .command_line = std::move(flags), .machine = cpu_box()});
  std::vector<Problem> problems;
  for (const Problem& problem : found.problems) {
    if (problem.severity == Severity::kError) problems.push_back(problem);
  }
  const auto more = validate(found.config);
  problems.insert(problems.end(), more.begin(), more.end());
  return joined(problems);
}

std::string said_to_cpu_ranks(std::vector<Override> flags) {
  flags.push_back({"distributed_type", "MULTI_CPU"});
  flags.push_back({"num_processes", "2"});
  return said_to(std::move(flags));
}

}  // namespace

TEST_CASE("flags that have no part are warned about, each by name") {
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"zero_stage", "3"},
                                                        {"fsdp_sharding_strategy", "FULL_SHARD"},
                                                        {"fp8_backend", "TE"},
                                                        {"megatron_lm_tp_degree", "2"},
                                                        {"parallelism_config_cp_backend", "torch"},
                                                        {"dynamo_use_fullgraph", "true"},
                                                        {"downcast_bf16", "true"},
                                                        {"tpu_use_cluster", "true"},
                                                        {"vm", "x"},
                                                        {"main_training_function", "main"},
                                                        {"command_file", "f"}}) {
    const std::string said = said_to_cpu_ranks({{key, text}});
    INFO(key << "\n" << said);
    CHECK_THAT(said, ContainsSubstring(concat("warning command line --", key)));
    CHECK_THAT(said, ContainsSubstring("has no effect"));
    CHECK(split(trim(said), '\n').size() == 1);
  }
  CHECK(
      split(trim(said_to_cpu_ranks({{"zero_stage", "3"}, {"fsdp_version", "2"}, {"fp8_margin", "1"}})), '\n')
          .size() == 3);
  // Not a wish for anything.
  CHECK(said_to_cpu_ranks({{"parallelism_config_tp_size", "1"}}).empty());
  CHECK(said_to_cpu_ranks({{"dynamo_backend", "no"}}).empty());
  CHECK(said_to_cpu_ranks({{"same_network", "true"}}).empty());
}

TEST_CASE("keys of TPU pods have no effect, which is said where they ask for something") {
  for (const char* line : {"tpu_name: pod", "tpu_zone: z", "commands: [a, b]", "command_file: f",
                           "tpu_env: [A=1]", "tpu_vm: [x]", "tpu_use_cluster: true", "tpu_use_sudo: true",
                           "downcast_bf16: true", "downcast_bf16: 'yes'", "main_training_function: train"}) {
    const Checked found = checked(concat(kCpu, "num_processes: 2\n", line, "\n"));
    INFO(line << found.text);
    CHECK(found.warning("c.yaml:3: "));
    CHECK(found.warning("has no effect"));
    CHECK(found.problems.size() == 1);
  }
  const Checked quiet = checked(
      kCpu +
      "num_processes: 2\nmain_training_function: main\ndowncast_bf16: 'no'\ntpu_env: []\n"
      "tpu_use_cluster: false\ntpu_use_sudo: false\ncommands: null\ntpu_name: null\nsame_network: true\n"
      "dynamo_config:\n  dynamo_backend: 'NO'\n");
  INFO(quiet.text);
  CHECK(quiet.problems.empty());
}

TEST_CASE("words of rdzv_backend are known ones, on one machine too") {
  CHECK(checked(kCpu + "num_processes: 2\nrdzv_backend: foo\n")
            .error("rdzv_backend: expected static, c10d, etcd or etcd-v2, got 'foo'"));
  CHECK_THAT(said_to_cpu_ranks({{"rdzv_backend", "etcd"}}),
             ContainsSubstring("error command line --rdzv_backend: rdzv_backend: not supported yet"));
  CHECK_FALSE(has_errors(checked(kCpu + "rdzv_backend: etcd\n", cpu_box(), ValidateFor::kRank).problems));
}

TEST_CASE("a hostfile asks for ranks through mpirun, and their number is needed") {
  CHECK_THAT(said_to({{"mpirun_hostfile", "/dev/null"}}),
             ContainsSubstring("error num_processes: is needed with distributed_type MULTI_CPU"));
  CHECK_THAT(said_to({{"mpirun_hostfile", "/dev/null"}, {"use_cpu", "true"}}),
             ContainsSubstring("num_processes: is needed"));
  CHECK(said_to({{"mpirun_hostfile", "/dev/null"}, {"num_processes", "1"}})
            .find("there is nothing to share out") != std::string::npos);
  CHECK_THAT(said_to({{"mpirun_hostfile", "/dev/null"}, {"distributed_type", "NO"}}),
             ContainsSubstring("--mpirun_hostfile: mpirun_config.mpirun_hostfile: has no effect under NO"));
}

TEST_CASE("contradictions within a block") {
  const Checked fsdp = checked(
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n  fsdp_use_orig_params: "
      "true\n"
      "  fsdp_forward_prefetch: false\n  fsdp_reshard_after_forward: true\n");
  INFO(fsdp.text);
  CHECK(fsdp.warning("fsdp_use_orig_params: has no effect with fsdp_version 2"));
  CHECK_FALSE(fsdp.warning("fsdp_forward_prefetch"));
  CHECK_FALSE(fsdp.warning("fsdp_reshard_after_forward"));
  const Checked zero = checked(
      "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 2\n"
      "  offload_param_device: cpu\n  deepspeed_config_file: /no/such.json\n");
  INFO(zero.text);
  CHECK(zero.warning("offload_param_device: has no effect with zero_stage 2"));
  CHECK(zero.error("file /no/such.json does not exist"));
}

TEST_CASE("a file by itself may lack what a command line adds, but not contradict itself") {
  const std::string text = kCpu + "num_processes: 4\nnum_machines: 2\n";
  CHECK(checked(text, cpu_box(), ValidateFor::kFile).warning("main_process_ip: is not given"));
  CHECK_FALSE(checked(text, cpu_box(), ValidateFor::kFile).error("main_process_ip"));
  CHECK(checked(text + "main_process_ip: null\n", cpu_box(), ValidateFor::kFile)
            .error("c.yaml:4: main_process_ip: is null"));
}

TEST_CASE("a file by itself may be meant for another machine") {
  for (const auto& [text, machine, said] : std::vector<std::tuple<std::string, MachineFacts, std::string>>{
           {kGpu + "num_processes: 8\n", cpu_box(), "MULTI_GPU, but no CUDA device found on this machine"},
           {kGpu + "num_processes: 8\n", gpu_box(2),
            "8 processes on this machine, but it has 2 CUDA devices"},
           {kGpu + "num_processes: 2\ngpu_ids: 6,7\n", gpu_box(2), "devices 6,7 do not exist"},
           {kGpu + "num_processes: 2\ngpu_ids: 6,7\n", gpu_box({"4", "5"}), "shows 4,5 only"},
           {kNo + "gpu_ids: 3\n", cpu_box(), "3, but no CUDA device found on this machine"},
           {kCpu + "num_processes: 1000\n", cpu_box(), "1000 processes on a machine with 4 cores"},
           {kCpu + "num_processes: 2\nmpirun_config:\n  mpirun_hostfile: /no/such\n", cpu_box(),
            "mpirun_hostfile: /no/such does not exist on this machine"}}) {
    const Checked found = checked(text, machine, ValidateFor::kFile);
    INFO(text << found.text);
    CHECK(found.warning(said));
    CHECK(found.problems.size() == 1);
    CHECK_FALSE(has_errors(found.problems));
    CHECK(found.text.find("--cpu") == std::string::npos);
  }
  CHECK(checked(kCpu + "num_processes: 2\nmpirun_config:\n  mpirun_hostfile: /dev/null\n", cpu_box(),
                ValidateFor::kFile)
            .problems.empty());
}

TEST_CASE("inside a rank, counts are the launcher's business") {
  const Checked found = checked(kGpu + "num_machines: 2\nmachine_rank: 7\n", cpu_box(), ValidateFor::kRank);
  INFO(found.text);
  CHECK_FALSE(has_errors(found.problems));
  CHECK(has_errors(checked(kNo + "mixed_precision: fp8\n", cpu_box(), ValidateFor::kRank).problems));
}

TEST_CASE("a file named for another way of running") {
  const TempFolder folder;
  const EnvVars none;
  const auto text = [&](const std::string& name) {
    return joined(
        validate(load_config({.file = folder.write(name, kNo), .environment = none, .machine = cpu_box()})));
  };
  CHECK_THAT(text("accelerate_config_fsdp.yaml"), ContainsSubstring("is NO, though the file is called"));
  CHECK(text("single.yaml").empty());
}

TEST_CASE("errors are thrown together") {
  CHECK_NOTHROW(throw_if_errors({}));
  Problem warning;
  warning.severity = Severity::kWarning;
  CHECK_NOTHROW(throw_if_errors({warning}));
  std::vector<Problem> many(
      100, Problem{Severity::kError, ProblemKind::kContent, "key", "is wrong", "Do it right.", {}});
  try {
    throw_if_errors(many);
    FAIL("not thrown");
  } catch (const ConfigError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("100 problems"));
    CHECK_THAT(error.what(), ContainsSubstring("key: is wrong. Do it right."));
    CHECK_THAT(error.what(), ContainsSubstring("and 70 more"));
  }
}
