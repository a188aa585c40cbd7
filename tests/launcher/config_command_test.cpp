// `accel config`: what it asks, what it saves, and that it can be used.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "accelerate/config/schema.h"
#include "config/config_test_support.h"
#include "launcher/commands.h"
#include "launcher/config_actions.h"
#include "launcher/config_questions.h"
#include "launcher/config_save.h"
#include "launcher/config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::cli;
using namespace accelerate::test;

namespace {

struct Session {
  int code = 0;
  std::string out;
  std::string err;
  std::string error;
};

using Action = int (*)(const ConfigRequest&, const ConfigIo&);

Session run(Action action, const ConfigRequest& request, const std::string& answers = {},
            const EnvVars& environment = {}) {
  std::istringstream in(answers);
  std::ostringstream out;
  std::ostringstream err;
  Session session;
  try {
    session.code = action(request, {.variables = environment, .in = in, .out = out, .err = err});
  } catch (const Error& error) {
    session.code = error.exit_code();
    session.error = error.what();
  }
  session.out = out.str();
  session.err = err.str();
  return session;
}

ConfigRequest at(const std::filesystem::path& file, bool force = false) {
  return {.file = file.string(), .force = force, .mixed_precision = {}};
}

Config load_alone(const std::filesystem::path& file, MachineFacts machine) {
  const EnvVars none;
  return load_config({.file = file, .environment = none, .machine = machine});
}

size_t count_files(const std::filesystem::path& folder) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

}  // namespace

TEST_CASE("the questions take their defaults for empty lines, and offer only what works here") {
  std::istringstream in("\n\n\n\n\n\n");
  std::ostringstream out;
  PlainPrompt prompt(in, out);
  const Config config = ask_config(prompt, cpu_box());
  CHECK(config.distributed_type == DistributedType::kNo);
  CHECK(config.num_processes == 1);
  CHECK(config.use_cpu);
  CHECK_FALSE(config.debug);
  CHECK_THAT(out.str(), ContainsSubstring("MULTI_CPU"));
  CHECK_THAT(out.str(), ContainsSubstring("faster, same memory"));
  CHECK_THAT(out.str(), ContainsSubstring("FSDP and ZeRO"));
  CHECK_THAT(out.str(), ContainsSubstring("not supported yet"));
  CHECK(out.str().find("MULTI_GPU ") == std::string::npos);
  // Keys that HF Accelerate would refuse are left out where they say nothing.
  CHECK(write_yaml(config).find("gradient_accumulation_steps") == std::string::npos);
}

TEST_CASE("on a machine with devices, they are the default") {
  std::istringstream in("\n\n\n\n\n\n\n\n\n");
  std::ostringstream out;
  PlainPrompt prompt(in, out);
  const Config config = ask_config(prompt, gpu_box(4));
  CHECK(config.distributed_type == DistributedType::kMultiGpu);
  CHECK(config.num_processes == 4);
  CHECK_FALSE(config.use_cpu);
}

TEST_CASE("a bad answer is asked again, with the reason") {
  const TempFolder folder;
  const auto file = folder.path() / "c.yaml";
  const Session session =
      run(ask_and_save, at(file),
          "7\nmulti_cpu\n\nmaybe\nY\nabc\n0\n100000\n3\nno\nbf16\n0\n2\nyes\nno\nper_process\n");
  CHECK(session.code == 0);
  CHECK_THAT(session.out, ContainsSubstring("'7' is none of these"));
  CHECK_THAT(session.out, ContainsSubstring("got 'abc'"));
  CHECK_THAT(session.out, ContainsSubstring("got '0'"));
  CHECK_THAT(session.out, ContainsSubstring("100000 processes on a machine with"));
  CHECK_THAT(session.out, ContainsSubstring("'maybe' is neither yes nor no"));
  CHECK_THAT(session.out, ContainsSubstring(concat("accelerate configuration saved at ", file.string())));
  const Config config = load_alone(file, cpu_box());
  CHECK(config.distributed_type == DistributedType::kMultiCpu);
  CHECK(config.num_processes == 3);
  CHECK(config.mixed_precision == MixedPrecision::kBf16);
  CHECK(config.gradient_accumulation_steps == 2);
  CHECK(config.debug);
  CHECK_FALSE(config.step_scheduler_with_optimizer);
  CHECK(config.scheduler_rule == "per_process");
}

TEST_CASE("processes are pinned only where each can have a core") {
  const auto answers = [](const char* processes) {
    std::istringstream in(concat("multi_cpu\n\n\n", processes, "\nyes\n\n\n\n"));
    std::ostringstream out;
    PlainPrompt prompt(in, out);
    return ask_config(prompt, cpu_box(4)).enable_cpu_affinity;
  };
  CHECK(answers("4"));
  CHECK_FALSE(answers("5"));
}

TEST_CASE("questions about several machines: what contradicts is asked again, with the reason") {
  const TempFolder folder;
  const auto file = folder.path() / "c.yaml";
  const Session session = run(ask_and_save, at(file),
                              "multi_cpu\n"        // type
                              "0\n2\n"             // machines
                              "\n"                 // mpirun
                              "static\n"           // rendezvous
                              "2\n1\n"             // rank
                              "\n1234\nnode-0\n"   // address
                              "0\n70000\n29501\n"  // port
                              "yes\n"              // debug
                              "3\n1\n4\n"          // processes
                              "\n"                 // affinity
                              "\n"                 // precision
                              "\n"                 // accumulation
                              "\n");               // schedulers
  INFO(session.out << session.error);
  REQUIRE(session.code == 0);
  for (const char* reason :
       {"got '0'", "is 2 with num_machines 2. Ranks of machines go from 0 to 1.",
        "'' is no address and no host name", "'1234' is no address and no host name",
        "is 0 (any free one) with num_machines 2", "an integer from 0 to 65535, got '70000'",
        "3 processes can't be shared out evenly over num_machines 2", "1 process for num_machines 2"}) {
    CHECK_THAT(session.out, ContainsSubstring(reason));
  }
  CHECK_THAT(session.out, ContainsSubstring("Not supported yet as mixed_precision: fp8."));
  CHECK_THAT(session.out, ContainsSubstring("Processes are counted over all 2 machines"));
  CHECK_THAT(session.out, ContainsSubstring("--num_cpu_threads_per_process"));
  CHECK(session.out.find("dynamo") == std::string::npos);
  const Config config = load_alone(file, cpu_box());
  CHECK(config.num_machines == 2);
  CHECK(config.machine_rank == 1);
  CHECK(config.rdzv_backend == "static");
  CHECK(config.main_process_ip == "node-0");
  CHECK(config.main_process_port == 29501);
  CHECK(config.same_network);
  CHECK(session.out.find("(same_network)") == std::string::npos);
  CHECK(session.out.find("takes a free one") == std::string::npos);
  CHECK(config.debug);
  CHECK(config.num_processes == 4);
}

TEST_CASE("machines that number themselves are not asked for a number") {
  const TempFolder folder;
  const auto file = folder.path() / "c.yaml";
  const Session session = run(ask_and_save, at(file), "2\n2\n\nc10d\nnode-0\n\n\n4\n\n\n\n\n");
  INFO(session.out << session.error);
  REQUIRE(session.code == 0);
  CHECK(session.out.find("(machine_rank") == std::string::npos);
  const Config config = load_alone(file, cpu_box());
  CHECK(config.rdzv_backend == "c10d");
  CHECK(config.main_process_port == 29500);
  CHECK(config.same_network);
}

TEST_CASE("ranks of several machines may be left to mpirun, which asks for its hostfile alone") {
  const TempFolder folder;
  const auto file = folder.path() / "c.yaml";
  const std::string hosts = folder.write("hosts", "a slots=2\nb slots=2\n").string();
  const Session session =
      run(ask_and_save, at(file), concat("multi_cpu\n2\nyes\n", hosts, "\n\n4\n\n\n\n\n"));
  INFO(session.out << session.error);
  REQUIRE(session.code == 0);
  CHECK(session.out.find("main_process_ip") == std::string::npos);
  const Config config = load_alone(file, cpu_box());
  CHECK(config.mpirun.hostfile == hosts);
  CHECK(config.num_processes == 4);
  CHECK(uses_mpirun(config));
  CHECK_THAT(read_file(file), ContainsSubstring(concat("mpirun_config:\n  mpirun_hostfile: ", hosts)));
}

TEST_CASE("when the input ends early, nothing is saved") {
  const TempFolder folder;
  for (const char* answers : {"", "2\n", "2\n1\n", "2\n1\nno\n", "2\n1\nno\n2\n", "2\n2\nyes\n",
                              "2\n2\nno\nstatic\n0\n10.0.0.1\n"}) {
    const Session session = run(ask_and_save, at(folder.path() / "c.yaml"), answers);
    CHECK(session.code == 2);
    CHECK_THAT(session.error, ContainsSubstring("nothing was saved"));
    CHECK(count_files(folder.path()) == 0);
  }
}

TEST_CASE("an existing file is replaced only when asked") {
  const TempFolder folder;
  const auto file = folder.write("c.yaml", "mine\n");
  CHECK(run(ask_and_save, at(file), "no\n").code == 0);
  CHECK(read_file(file) == "mine\n");
  CHECK(run(ask_and_save, at(file), "\n").code == 0);
  CHECK(read_file(file) == "mine\n");
  const Session refused = run(save_basic, at(file));
  CHECK(refused.code == 2);
  CHECK_THAT(refused.error, ContainsSubstring("--force"));
  CHECK(read_file(file) == "mine\n");
  CHECK(run(save_basic, at(file, true)).code == 0);
  CHECK(load_alone(file, cpu_box()).distributed_type == DistributedType::kNo);
  CHECK(run(ask_and_save, at(file), "yes\n2\n\n\n2\n\n\n\n\n").code == 0);
  CHECK(load_alone(file, cpu_box()).distributed_type == DistributedType::kMultiCpu);
  CHECK(run(ask_and_save, at(file, true), "1\n\n\n\n\n\n\n").code == 0);
  CHECK(load_alone(file, cpu_box()).distributed_type == DistributedType::kNo);
  CHECK(count_files(folder.path()) == 1);
}

TEST_CASE("the default place is under the user's configuration folder") {
  const TempFolder folder;
  const EnvVars environment = variables({{"HOME", folder.path().string()}});
  const Session session = run(save_basic, {}, {}, environment);
  const auto file = folder.path() / ".config/accelerate/default_config.yaml";
  CHECK(session.code == 0);
  CHECK_THAT(session.out, ContainsSubstring(file.string()));
  CHECK(load_alone(file, cpu_box()).num_processes == 1);
  CHECK_THAT(run(show_config, {}, {}, environment).out,
             ContainsSubstring(concat("file ", file.string(), ":")));
  CHECK(run(save_basic, {}, {}, EnvVars()).code == 2);
}

TEST_CASE("the basic file for each kind of machine") {
  CHECK(basic_config(cpu_box(), "").use_cpu);
  CHECK(basic_config(cpu_box(), "no").distributed_type == DistributedType::kNo);
  CHECK(basic_config(gpu_box(1), "").distributed_type == DistributedType::kNo);
  CHECK_FALSE(basic_config(gpu_box(1), "").use_cpu);
  CHECK(basic_config(gpu_box(4), "").distributed_type == DistributedType::kMultiGpu);
  CHECK(basic_config(gpu_box(4), "").num_processes == 4);
  CHECK_THROWS_AS(basic_config(cpu_box(), "fp7"), ConfigError);
  for (const MachineFacts& machine : {cpu_box(), gpu_box(1), gpu_box(4)}) {
    check_comes_back(basic_config(machine, ""), machine, ".yaml");
  }
}

TEST_CASE("show prints values with origins, and warnings apart") {
  const TempFolder folder;
  const auto file = folder.write("c.yaml", "distributed_type: NO\nnum_processes: 8\n");
  const Session session = run(show_config, at(file), {}, variables({{"ACCELERATE_DEBUG_MODE", "true"}}));
  CHECK(session.code == 0);
  CHECK_THAT(session.out, ContainsSubstring("# environment ACCELERATE_DEBUG_MODE"));
  CHECK_THAT(session.out, ContainsSubstring("c.yaml:1"));
  CHECK_THAT(session.err, ContainsSubstring("warning: "));
  CHECK_THAT(session.err, ContainsSubstring("is 8, but distributed_type is NO"));
  CHECK(run(show_config, at(folder.path() / "missing.yaml")).code == 2);
  CHECK_THAT(run(show_config, {}, {}, variables({{"HOME", folder.path().string()}})).out,
             ContainsSubstring("No configuration file found"));
}

TEST_CASE("validate prints everything and tells by its exit code") {
  const TempFolder folder;
  const auto good = folder.write("good.yaml", "distributed_type: MULTI_CPU\nnum_processes: 1\n");
  const Session fine = run(validate_file, at(good));
  CHECK(fine.code == 0);
  CHECK_THAT(fine.out, ContainsSubstring("0 errors, 1 warning\n"));
  const auto bad =
      folder.write("bad.yaml", "distributed_type: NO\ncolour: red\nmixed_precision: fp8\nfp16: true\n");
  const Session found = run(validate_file, at(bad));
  CHECK(found.code == 2);
  CHECK_THAT(found.out, ContainsSubstring(concat("error: ", bad.string(), ":2: colour: unknown key")));
  CHECK_THAT(found.out, ContainsSubstring("not supported yet: mixed_precision fp8"));
  CHECK_THAT(found.out, ContainsSubstring("warning: "));
  CHECK_THAT(found.out, ContainsSubstring("2 errors, 1 warning\n"));
  CHECK(run(validate_file, at(folder.path() / "missing.yaml")).code == 2);
  CHECK(run(validate_file, {}, {}, variables({{"HOME", folder.path().string()}})).code == 2);
  // A missing value has one problem, not a second one for what follows.
  const auto holes = folder.write("holes.yaml", "distributed_type: MULTI_CPU\nnum_processes: ${N}\n");
  CHECK_THAT(run(validate_file, at(holes)).out, ContainsSubstring("1 error, 0 warnings\n"));
  // The variables of this shell are no part of the file.
  CHECK(run(validate_file, at(good), {}, variables({{"ACCELERATE_MIXED_PRECISION", "bf16"}})).code == 0);
}

TEST_CASE("the files that come with the program are right on whatever machine") {
  for (const auto& entry : std::filesystem::directory_iterator(ACCELERATE_TEST_SOURCE_DIR "/configs")) {
    const Session session = run(validate_file, at(entry.path()));
    INFO(session.out);
    CHECK(session.code == 0);
  }
}

TEST_CASE("update rewrites old spellings and keeps what is not supported yet") {
  const TempFolder folder;
  const auto file =
      folder.write("old.yaml",
                   "# mine\nfp16: true\ndistributed_type: FSDP\nnum_processes: 4\nuse_ipex: false\n"
                   "fsdp_config:\n  fsdp_sharding_strategy: 1\n  min_num_params: 1e8\n");
  const Session session = run(update_file, at(file));
  CHECK(session.code == 0);
  CHECK_THAT(session.out, ContainsSubstring(
                              concat("Successfully updated the configuration file at ", file.string(), ".")));
  CHECK_THAT(session.err, ContainsSubstring("use_ipex"));
  CHECK_THAT(session.err, ContainsSubstring("fp16: key of an old release"));
  CHECK(session.err.find("accel config update") == std::string::npos);
  const std::string text = read_file(file);
  CHECK_THAT(text, ContainsSubstring("fsdp_config:\n  fsdp_min_num_params: 100000000\n"
                                     "  fsdp_sharding_strategy: FULL_SHARD\n"));
  CHECK_THAT(text, ContainsSubstring("mixed_precision: fp16\n"));
  CHECK(text.find("fp16: true") == std::string::npos);
  CHECK(run(update_file, at(file)).err.empty());
  CHECK(read_file(file) == text);
  const auto json = folder.write("old.json", "{\"distributed_type\": \"NO\", \"fp16\": false}");
  CHECK(run(update_file, at(json)).code == 0);
  CHECK(load_alone(json, cpu_box()).load_warnings.empty());
  const auto bad = folder.write("bad.yaml", "distributed_type: NO\ncolour: red\n");
  CHECK(run(update_file, at(bad)).code == 2);
  CHECK(read_file(bad) == "distributed_type: NO\ncolour: red\n");
}

TEST_CASE("a file is replaced as a whole or not at all") {
  const TempFolder folder;
  const auto file = folder.path() / "a/b/c.yaml";
  replace_file(file.string(), "one\n");
  CHECK(read_file(file) == "one\n");
  REQUIRE(::chmod(file.c_str(), 0600) == 0);
  replace_file(file.string(), "two\n");
  CHECK(read_file(file) == "two\n");
  CHECK((std::filesystem::status(file).permissions() & std::filesystem::perms::all) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  CHECK(count_files(file.parent_path()) == 1);
  // Also a mode that the mask of this process would narrow.
  const mode_t mask = ::umask(022);
  REQUIRE(::chmod(file.c_str(), 0664) == 0);
  replace_file(file.string(), "two\n");
  ::umask(mask);
  struct stat info {};
  REQUIRE(::stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0664);
  const auto link = folder.path() / "link.yaml";
  std::filesystem::create_symlink(file, link);
  replace_file(link.string(), "three\n");
  CHECK(std::filesystem::is_symlink(link));
  CHECK(read_file(file) == "three\n");
  CHECK_THROWS_AS(replace_file(folder.path().string(), "x"), ConfigError);
  CHECK_THROWS_AS(replace_file((file / "below").string(), "x"), ConfigError);
  CHECK(read_file(file) == "three\n");
}

TEST_CASE("a write that fails leaves the old file and nothing beside it") {
  const TempFolder folder;
  const auto file = folder.write("c.yaml", "old\n");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    replace_file(file.string(), "far more than three bytes\n");
  } catch (const ConfigError& error) {
    message = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  ::signal(SIGXFSZ, handler);
  CHECK_THAT(message, ContainsSubstring("can't save"));
  CHECK(read_file(file) == "old\n");
  CHECK(count_files(folder.path()) == 1);
}

TEST_CASE("the command line reaches the actions") {
  const TempFolder folder;
  const std::string file = (folder.path() / "c.yaml").string();
  const auto parse = [](std::vector<std::string> arguments) {
    CLI::App app("accel");
    int exit_code = -1;
    add_config_command(app, exit_code);
    std::reverse(arguments.begin(), arguments.end());
    app.parse(arguments);
    return exit_code;
  };
  CHECK(parse({"config", "--default", "--config_file", file}) == 0);
  CHECK(load_alone(file, cpu_box()).num_processes == 1);
  CHECK_THROWS_AS(parse({"config", "default", "--config_file", file}), ConfigError);
  CHECK(parse({"config", "default", "--force", "--config-file", file}) == 0);
  CHECK(parse({"config", "validate", file}) == 0);
  CHECK(parse({"config", "show", file}) == 0);
  CHECK(parse({"config", "show", "--config_file", file}) == 0);
  CHECK(parse({"config", "update", file}) == 0);
  CHECK(parse({"config", "keys"}) == 0);
  CHECK_THROWS_AS(parse({"config", "--defualt"}), CLI::ParseError);
}
