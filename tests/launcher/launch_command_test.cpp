// `accel launch` as typed.
#include "accelerate/core/machine.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

// Refused with this code before anything was started, in one line that holds all parts.
void check_refused(const std::vector<std::string>& words, int code, const std::vector<std::string>& parts) {
  AccelRun run(words);
  CHECK(run.finish() == code);
  INFO(run.err());
  CHECK(run.out().empty());
  CHECK_THAT(run.err(), Catch::Matchers::StartsWith("accel: error: "));
  for (const std::string& part : parts) CHECK_THAT(run.err(), ContainsSubstring(part));
}

}  // namespace

TEST_CASE("slips are answered with the nearest name", "[launcher]") {
  check_refused({"lanch"}, 2, {"unknown command 'lanch'", "`accel launch`"});
  check_refused({"launch", "--num_proceses", "2", "x"}, 2,
                {"--num_proceses", "Did you mean --num_processes?"});
  check_refused({"launch", "--main-proces-port", "2", "x"}, 2, {"Did you mean --main_process_port?"});
  check_refused({"--versoin"}, 2, {"--versoin", "--version"});
  check_refused({"env", "--config-fil", "x"}, 2, {"--config_file"});
  check_refused({"launch", "--num_processes"}, 2, {"--num_processes needs a value"});
}

TEST_CASE("flags of other launchers that have another form here are answered with it", "[launcher]") {
  check_refused({"launch", "-m", "package.train"}, 2, {"unknown flag -m", "no Python modules"});
  check_refused({"launch", "--module", "x"}, 2, {"unknown flag --module", "give the program itself"});
  check_refused({"launch", "--rdzv_endpoint", "a:1", "x"}, 2, {"--main_process_ip", "--main_process_port"});
  check_refused({"launch", "--standalone", "x"}, 2, {"Leave it out"});
}

TEST_CASE("messages name the flags that were typed", "[launcher]") {
  const RunOptions no_devices{.environment = {{"CUDA_VISIBLE_DEVICES", "-1"}}};
  for (const char* flag : {"--tpu", "--multi_gpu"}) {
    AccelRun run({"launch", flag, "--num_processes", "2", bin("rank_script")}, no_devices);
    CHECK(run.finish() == 2);
    CHECK_THAT(run.err(), ContainsSubstring(concat("command line ", flag, ": ")));
    CHECK(AccelRun::count_in(run.err(), "--distributed_type") == 0);
  }
  check_refused({"launch", "--cpu", "--nnodes", "2", bin("rank_script")}, 2,
                {"main_process_ip: is not given with --nnodes 2"});
  AccelRun both({"launch", "--cpu", "--multi_gpu", bin("rank_script")}, no_devices);
  CHECK(both.finish() == 2);
  CHECK_THAT(both.err(), ContainsSubstring("use_cpu: is true with distributed_type MULTI_GPU"));
  CHECK(lines_of(both.err()).size() == 1);
  AccelRun help({"launch", "--help"});
  CHECK(help.finish() == 0);
  CHECK(AccelRun::count_in(help.out(), "mpirun_config:") == 0);
  CHECK_THAT(help.out(), ContainsSubstring("--mpirun_hostfile"));
}

TEST_CASE("what follows the program is the program's", "[launcher]") {
  const std::vector<std::string> mine = {"--cpu", "--num_processes", "9", "--", "--bogus", "-x", "", "a b"};
  for (const bool separated : {false, true}) {
    std::vector<std::string> words = {"launch", "--num-processes=1", "--CPU"};
    words.back() = "--cpu";
    if (separated) words.push_back("--");
    words.insert(words.end(), {bin("rank_script"), "args"});
    words.insert(words.end(), mine.begin(), mine.end());
    AccelRun run(words);
    CHECK(run.finish() == 0);
    CHECK(run.out() == "<--cpu>\n<--num_processes>\n<9>\n<-->\n<--bogus>\n<-x>\n<>\n<a b>\n");
  }
}

TEST_CASE("dashes and underscores in flags are the same", "[launcher]") {
  for (const char* flag : {"--num_processes", "--num-processes"}) {
    AccelRun run(
        {"launch", "--cpu", flag, "2", "--main-process_port", "0", bin("rank_script"), "env", "WORLD_SIZE"});
    CHECK(run.finish() == 0);
    CHECK(AccelRun::count_in(run.out(), "WORLD_SIZE=2") == 2);
  }
}

TEST_CASE("programs that can't be started are told apart", "[launcher]") {
  TempDir dir;
  write_file(dir / "train.py", "print(1)\n");
  write_file(dir / "plain", "text\n");
  write_file(dir / "noline", "echo hi\n");
  std::filesystem::permissions(dir / "noline", std::filesystem::perms::owner_all);
  check_refused({"launch", dir / "missing"}, 3, {dir / "missing", "there is no such file"});
  check_refused({"launch", dir.path()}, 3, {dir.path(), "is a folder"});
  check_refused({"launch", dir / "plain"}, 3, {"is not executable", "chmod +x"});
  check_refused({"launch", dir / "train.py"}, 3, {"is a Python script", "accel launch python3"});
  check_refused({"launch", "no-such-program-anywhere"}, 3, {"neither in PATH nor in this folder"});
  check_refused({"launch", ""}, 3, {"empty"});
  check_refused({"launch"}, 2, {"no program given", "accel launch [flags]"});
  AccelRun here({"launch", "noline"}, {.working_directory = dir.path()});
  CHECK(here.finish() == 3);
  CHECK_THAT(here.err(), ContainsSubstring("not in PATH, but here") && ContainsSubstring("./noline"));
  AccelRun script({"launch", "--quiet", dir / "noline"});
  CHECK(script.finish() == 3);
  CHECK_THAT(script.err(), ContainsSubstring("#!/bin/sh"));
  CHECK(script.nothing_left());
  // In PATH it needs no path.
  AccelRun found({"launch", "--quiet", "rank_script", "print", "found"},
                 {.environment = {{"PATH", concat("/nowhere:", ACCELERATE_TEST_BIN_DIR, ":/usr/bin")}}});
  CHECK(found.finish() == 0);
  CHECK(found.out() == "found\n");
}

TEST_CASE("counts that do not fit are refused before anything starts", "[launcher]") {
  const std::string program = bin("rank_script");
  check_refused({"launch", "--cpu", "--num_processes", "0", program}, 2, {"num_processes", "'0'"});
  check_refused({"launch", "--cpu", "--num_processes", "-1", program}, 2, {"num_processes", "'-1'"});
  check_refused({"launch", "--cpu", "--num_processes", "100000", program}, 2, {"100000 processes"});
  check_refused({"launch", "--cpu", "--num_processes", "2", "--num_machines", "2", program}, 2,
                {"num_machines"});
  const auto machines = [&](std::vector<std::string> flags, const std::vector<std::string>& said) {
    flags.insert(flags.begin(), {"launch", "--cpu"});
    flags.push_back(program);
    check_refused(flags, 2, said);
  };
  machines({"--num_processes", "2", "--num_machines", "2"}, {"main_process_ip"});
  machines({"--num_processes", "1", "--num_machines", "2", "--main_process_ip", "a"}, {"1 process", "2"});
  machines({"--num_processes", "3", "--num_machines", "2", "--main_process_ip", "a"}, {"3 processes", "2"});
  machines({"--num_processes", "4", "--num_machines", "2", "--main_process_ip", "a", "--machine_rank", "5"},
           {"machine_rank", "5", "2"});
  machines(
      {"--num_processes", "4", "--num_machines", "2", "--main_process_ip", "a", "--main_process_port", "0"},
      {"main_process_port"});
  machines({"--nnodes", "3:2", "--main_process_ip", "a"}, {"--nnodes", "3:2"});
  machines({"--nproc_per_node", "2"}, {"--nnodes"});
  check_refused({"launch", "--num_cpu_threads_per_process", "0", program}, 2,
                {"num_cpu_threads_per_process"});
  check_refused({"launch", "--env", "novalue", program}, 2, {"KEY=VALUE", "novalue"});
}

TEST_CASE("values that a flag can't take are refused with what was expected and what was got", "[launcher]") {
  const std::string program = bin("rank_script");
  const auto refused = [&](const std::string& flag, const std::string& value, const std::string& expected) {
    check_refused({"launch", "--cpu", flag, value, program}, 2,
                  {concat(flag, ": expected ", expected, ", got '", value, "'")});
  };
  refused("--max_restarts", "-1", "an integer from 0 to 1000000");
  refused("--max_restarts", "many", "an integer from 0 to 1000000");
  refused("--num_cpu_threads_per_process", "0", "an integer from 1 to 1000000");
  refused("--num_cpu_threads_per_process", "1.5", "an integer from 1 to 1000000");
  refused("--nproc_per_node", "0", "an integer from 1 to 1000000");
  refused("--grace_period", "-1", "a number of seconds from 0 to 86400");
  refused("--connect_timeout", "0", "a number of seconds from 0.05 to 86400");
  refused("--last_call", "", "a number of seconds from 0.05 to 86400");
  check_refused({"test", "--num_processes", "0"}, 2,
                {"--num_processes: expected an integer from 1 to 1000000, got '0'"});
  check_refused({"estimate-memory", "--parameters", "1M", "--num_processes", "0"}, 2,
                {"--num_processes: expected an integer from 1 to 1000000, got '0'"});
  check_refused({"config", "validate", "--num_processes", "0"}, 2,
                {"--num_processes: expected an integer from 1 to 1000000, got '0'"});
  check_refused({"launch", "--num_processes=", "2", program}, 2, {"--num_processes needs a value"});
  check_refused({"config", "--config_file="}, 2, {"--config_file needs a value"});
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"launch"}, {"test"}, {"config"}, {"config", "validate"}, {"estimate-memory"}}) {
    std::vector<std::string> words = command;
    words.push_back("--help");
    AccelRun help(words);
    CHECK(help.finish() == 0);
    for (const char* never : {"POSITIVE", "NONNEGATIVE", " in ["}) {
      INFO(help.out());
      CHECK(help.out().find(never) == std::string::npos);
    }
  }
}

TEST_CASE("accel config show, validate and update take the file with and without --config_file",
          "[launcher]") {
  TempDir dir;
  const std::string file = dir / "c.yaml";
  write_file(file, "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n");
  for (const char* action : {"show", "validate", "update"}) {
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"config", action, file},
                                               {"config", action, "--config_file", file},
                                               {"config", action, "--config-file=" + file},
                                               {"config", "--config_file", file, action}}) {
      AccelRun run(words);
      CHECK(run.finish() == 0);
      INFO(run.err());
      CHECK_THAT(run.out(), ContainsSubstring(file));
    }
  }
  check_refused({"config", "keys", "--config_file", file}, 2, {"unknown flag --config_file"});
}

TEST_CASE("of a flag that is given twice, the last counts", "[launcher]") {
  AccelRun run({"launch",
                "--cpu",
                "--cpu",
                "--num_processes",
                "2",
                "--quiet",
                "--num-processes=1",
                "--quiet",
                "--max_restarts",
                "3",
                "--max_restarts=0",
                "--env",
                "A=1",
                "--env",
                "B=2",
                bin("rank_script"),
                "env",
                "WORLD_SIZE",
                "env",
                "A",
                "env",
                "B"});
  CHECK(run.finish() == 0);
  INFO(run.err());
  CHECK(run.out() == "WORLD_SIZE=1\nA=1\nB=2\n");
}

TEST_CASE("devices that are not there are refused", "[launcher]") {
  const RunOptions no_devices{.environment = {{"CUDA_VISIBLE_DEVICES", "-1"}}};
  AccelRun multi({"launch", "--multi_gpu", "--num_processes", "2", bin("rank_script")}, no_devices);
  CHECK(multi.finish() == 2);
  CHECK_THAT(multi.err(), ContainsSubstring("no CUDA device found") && ContainsSubstring("--cpu"));
  AccelRun ids({"launch", "--gpu_ids", "0,1", "--num_processes", "2", bin("rank_script")}, no_devices);
  CHECK(ids.finish() == 2);
  CHECK_THAT(ids.err(),
             ContainsSubstring("gpu_ids") && ContainsSubstring("0,1") && ContainsSubstring("use --cpu"));
  CHECK(lines_of(ids.err()).size() == 1);
  CHECK(multi.out().empty());
  CHECK(ids.out().empty());
}

TEST_CASE("a plain start is one process and says how to have more", "[launcher]") {
  AccelRun run({"launch", bin("rank_script"), "env", "WORLD_SIZE"},
               {.environment = {{"CUDA_VISIBLE_DEVICES", ""}}});
  CHECK(run.finish() == 0);
  CHECK(run.out() == "WORLD_SIZE=1\n");
  CHECK(lines_of(run.err()).size() == 1);
  CHECK_THAT(run.err(), ContainsSubstring("--num_processes N"));
  AccelRun quiet({"launch", "--quiet", bin("rank_script")});
  CHECK(quiet.finish() == 0);
  CHECK(quiet.all().empty());
}

TEST_CASE("the configuration reaches the ranks, flags first", "[launcher]") {
  TempDir dir;
  const std::string file = dir / "config.yaml";
  write_file(
      file, "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 2\ngradient_accumulation_steps: 4\n");
  AccelRun run(
      {"launch", "--config_file", "config.yaml", bin("rank_script"), "env", "ACCELERATE_CONFIG_FILE", "env",
       "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "env", "ACCELERATE_USE_CPU", "env", "WORLD_SIZE"},
      {.working_directory = dir.path()});
  CHECK(run.finish() == 0);
  CHECK(AccelRun::count_in(run.out(), "ACCELERATE_CONFIG_FILE=" + file) == 2);
  CHECK(AccelRun::count_in(run.out(), "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4") == 2);
  CHECK(AccelRun::count_in(run.out(), "ACCELERATE_USE_CPU=true") == 2);
  CHECK(AccelRun::count_in(run.out(), "WORLD_SIZE=2") == 2);

  AccelRun flag({"launch", "--config_file", file, "--num_processes", "3", "--gradient-accumulation-steps",
                 "2", "--quiet", bin("rank_script"), "env", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  CHECK(flag.finish() == 0);
  CHECK(AccelRun::count_in(flag.out(), "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2") == 3);
  check_refused({"launch", "--config_file", dir / "none.yaml", bin("rank_script")}, 2, {dir / "none.yaml"});
}

TEST_CASE("variables can be set for the ranks", "[launcher]") {
  AccelRun run({"launch", "--quiet", "--env", "A=1", "--env", "B=x=y z", "--env=C=", bin("rank_script"),
                "env", "A", "env", "B", "env", "C"});
  CHECK(run.finish() == 0);
  CHECK(run.out() == "A=1\nB=x=y z\nC=\n");
}

TEST_CASE("a dry run starts nothing and explains everything", "[launcher]") {
  TempDir dir;
  AccelRun run({"launch", "--dry-run", "--cpu", "--num_processes", "2", "--main_process_port", "1234",
                "--env", "A=b c", bin("rank_script"), "touch", dir / "started"});
  CHECK(run.finish() == 0);
  CHECK_THAT(run.out(),
             ContainsSubstring("num_processes: 2") && ContainsSubstring("command line --num_processes") &&
                 ContainsSubstring("2 processes = 1 machine x 2") && ContainsSubstring("port: 1234") &&
                 ContainsSubstring("rank 1:") && ContainsSubstring("RANK=1") &&
                 ContainsSubstring("MASTER_PORT=1234") && ContainsSubstring("A='b c'"));
  CHECK_FALSE(std::filesystem::exists(dir / "started.0"));
  AccelRun machines({"launch", "--dry-run", "--cpu", "--num_processes", "8", "--num_machines", "2",
                     "--main_process_ip", "10.0.0.1", bin("rank_script")},
                    {.environment = {{"SLURM_NODEID", "1"}}});
  CHECK(machines.finish() == 0);
  CHECK_THAT(machines.out(), ContainsSubstring("8 processes = 2 machines x 4") &&
                                 ContainsSubstring("rank 7:") &&
                                 ContainsSubstring("GROUP_RANK=1 GROUP_WORLD_SIZE=2") &&
                                 ContainsSubstring("LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.1") &&
                                 ContainsSubstring("detected: SLURM_NODEID"));
  // Without a program it shows the configuration alone.
  AccelRun bare({"launch", "--dry_run", "--cpu"});
  CHECK(bare.finish() == 0);
  CHECK_THAT(bare.out(), ContainsSubstring("1 process = 1 machine x 1"));
}

TEST_CASE("version, help and env", "[launcher]") {
  AccelRun version({"--version"});
  CHECK(version.finish() == 0);
  CHECK(AccelRun::count_in(version.out(), "accel ") == 1);
  AccelRun help({"launch", "--help"});
  CHECK(help.finish() == 0);
  CHECK_THAT(help.out(), ContainsSubstring("accel launch [flags]") && ContainsSubstring("--num_processes") &&
                             ContainsSubstring("Output:") && ContainsSubstring("--log_dir"));
  AccelRun none({});
  CHECK(none.finish() == 1);
  CHECK_THAT(none.out(), ContainsSubstring("launch") && ContainsSubstring("env"));
  AccelRun env({"env"}, {.environment = {{"ACCELERATE_USE_CPU", "true"}, {"MY_SECRET", "hidden"}}});
  CHECK(env.finish() == 0);
  for (const char* part :
       {"- accelerate: ", "- LibTorch: ", "- System: ", "- Compiler: ", "- CPUs: ", "- Memory: ",
        "- Shared memory: ", "- GPUs: ", "- Limits: ", "- Configuration file: none found",
        "ACCELERATE_USE_CPU=true", "# environment ACCELERATE_USE_CPU"}) {
    CHECK_THAT(env.out(), ContainsSubstring(part));
  }
  CHECK(AccelRun::count_in(env.out(), "hidden") == 0);
}

TEST_CASE("flags of other launchers have their effect or are named", "[launcher]") {
  const auto said = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"launch", "--cpu", "--num_processes", "1"});
    flags.insert(flags.end(), {bin("rank_script"), "print", "ran"});
    AccelRun run(flags);
    CHECK(run.finish() == 0);
    CHECK(run.out() == "ran\n");
    return run.err();
  };
  for (const char* flag : {"--monitor_interval", "--role", "--mpirun_ccl"}) {
    const std::string text = said({flag, "1"});
    CHECK(lines_of(text).size() == 1);
    CHECK_THAT(text, ContainsSubstring(concat("warning: ", flag, " has no effect: ")));
  }
  CHECK_THAT(said({"--same_network"}), ContainsSubstring("--same_network has no effect: "));
  CHECK_THAT(said({"--tee", "3"}), ContainsSubstring("--tee has no effect: without --log_dir"));
  CHECK_THAT(said({"--rdzv_conf", "keep_alive_interval=1,join_timeout=5"}),
             ContainsSubstring("--rdzv_conf keep_alive_interval has no effect"));
  CHECK(said({"--tee", "0"}).empty());
  CHECK(said({"--no_python"}).empty());
  CHECK(said({"--rdzv_conf", "rank=0,timeout=900"}).empty());
  const std::string program = bin("rank_script");
  check_refused({"launch", "--cpu", "--tee", "0:1,1:2", program}, 2, {"--tee", "'0:1,1:2'", "all ranks"});
  check_refused({"launch", "--cpu", "--tee=7", program}, 2, {"--tee", "'7'"});
  check_refused({"launch", "--cpu", "--redirects", "1", program}, 2, {"--redirects", "--log_dir"});
  check_refused({"launch", "--cpu", "--rdzv_conf", "join_timeout=soon", program}, 2,
                {"join_timeout", "'soon'"});
  check_refused({"launch", "--cpu", "--rdzv_conf", "soon", program}, 2, {"--rdzv_conf", "KEY=VALUE"});
}

TEST_CASE("counts that a file's type does not need are said, and what was meant runs", "[launcher]") {
  TempDir dir;
  write_file(dir / "no.yaml", "distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 2\n");
  AccelRun one({"launch", "--config_file", dir / "no.yaml", bin("rank_script"), "env", "WORLD_SIZE"});
  CHECK(one.finish() == 0);
  CHECK(one.out() == "WORLD_SIZE=1\n");
  CHECK_THAT(one.err(), ContainsSubstring("num_processes") &&
                            ContainsSubstring("is 2, but distributed_type is NO") &&
                            ContainsSubstring("no.yaml:3"));
  AccelRun flag({"launch", "--config_file", dir / "no.yaml", "--num_processes", "2", bin("rank_script"),
                 "env", "WORLD_SIZE"});
  CHECK(flag.finish() == 0);
  CHECK(AccelRun::count_in(flag.out(), "WORLD_SIZE=2\n") == 2);
  CHECK_THAT(flag.err(), ContainsSubstring("starting 2 processes as MULTI_CPU"));
  write_file(dir / "gpu.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\n");
  AccelRun gpu({"launch", "--config_file", dir / "gpu.yaml", bin("rank_script")},
               {.environment = {{"CUDA_VISIBLE_DEVICES", "-1"}}});
  CHECK(gpu.finish() == 2);
  CHECK_THAT(gpu.err(), ContainsSubstring("no CUDA device found; use --cpu"));
  if (accelerate::logical_cpus() <= 60)
    check_refused({"launch", "--cpu", "--num_processes", "1000", bin("rank_script")}, 2, {"1000 processes"});
}
