// mpirun_config: ranks started by Open MPI's mpirun, looked after as if they were ours.
#include <sys/stat.h>

#include "accelerate/core/error.h"
#include "launch_test_support.h"
#include "launcher/hostfile.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;
using accelerate::cli::read_hostfile;

namespace {

struct Hosts {
  TempDir dir;
  explicit Hosts(const std::string& text = "localhost slots=2\n") { write_file(path(), text); }
  std::string path() const { return dir / "hosts"; }
};

std::vector<std::string> words(const Hosts& hosts, std::vector<std::string> script,
                               std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {"--mpirun_hostfile", hosts.path()});
  return launch_words(2, std::move(script), flags);
}

// With the reason in a hostfile of this text.
void check_refused(const std::string& text, const std::string& said) {
  const Hosts hosts(text);
  INFO(text);
  try {
    read_hostfile(hosts.path());
    FAIL("it was accepted");
  } catch (const accelerate::ConfigError& error) {
    CHECK_THAT(std::string(error.what()), ContainsSubstring(said));
  }
}

}  // namespace

TEST_CASE("hostfiles of Open MPI are read", "[launcher]") {
  const Hosts hosts(
      "# all\nnode1 slots=4 max_slots=8\n\nnode2 slots = 2  # small\n10.0.0.3\nnode1 slots=1\n");
  const auto found = read_hostfile(hosts.path());
  REQUIRE(found.size() == 3);
  CHECK(found[0].name == "node1");
  CHECK(found[0].slots == 5);
  CHECK(found[1].slots == 2);
  CHECK(found[2].name == "10.0.0.3");
  CHECK_FALSE(found[2].slots);
  check_refused("", "names no machine");
  check_refused("# nobody\n", "names no machine");
  check_refused("a\nb slots=x\n", "hosts:2: slots 'x'");
  check_refused("a slots=0\n", "slots '0'");
  check_refused("a slots=\n", "slots ''");
  check_refused("a solts=2\n", "unknown word 'solts=2'");
  check_refused("slots=2\n", "begins with the machine's name");
}

TEST_CASE("what mpirun would be unable to do is refused before it starts", "[launcher]") {
  const auto refused = [](const std::vector<std::string>& flags, int code, const std::string& said,
                          const RunOptions& options = {}) {
    AccelRun run(launch_words(2, {"print", "started"}, flags), options);
    INFO(run.err());
    CHECK(run.finish() == code);
    CHECK(run.out().empty());
    CHECK_THAT(run.err(), ContainsSubstring(said));
  };
  const Hosts few("localhost slots=1\n");
  const Hosts good;
  refused({"--mpirun_hostfile", few.path()}, 2, "num_processes is 2");
  refused({"--mpirun_hostfile", few.dir / "none"}, 2, "No such file");
  refused({"--mpirun_hostfile", few.dir.path()}, 2, "is a folder");
  refused({"--mpirun_hostfile", good.path(), "--num_machines", "2"}, 2, "num_machines is 2");
  refused({"--mpirun_hostfile", good.path(), "--nnodes", "2", "--main_process_ip", "a"}, 2, "--nnodes");
  refused({"--mpirun_hostfile", good.path()}, 3, "not in PATH", {.environment = {{"PATH", "/nowhere"}}});
  TempDir bin_dir;
  write_file(bin_dir / "mpirun", "#!/bin/sh\necho 'HYDRA build details:'\n");
  ::chmod((bin_dir / "mpirun").c_str(), 0755);
  refused({"--mpirun_hostfile", good.path()}, 3, "is not Open MPI's",
          {.environment = {{"PATH", concat(bin_dir.path(), ":/usr/bin:/bin")}}});
}

TEST_CASE("a dry run shows mpirun's command", "[launcher]") {
  const Hosts hosts;
  AccelRun run(words(hosts, {"print", "x"}, {"--dry_run", "--env", "A=b"}));
  CHECK(run.finish() == 0);
  CHECK_THAT(run.out(), ContainsSubstring(concat("mpirun -n 2 --hostfile ", hosts.path())) &&
                            ContainsSubstring("-x A ") && ContainsSubstring("with: A=b"));
}

TEST_CASE("a dry run with mpirun says what is missing", "[launcher]") {
  const Hosts hosts;
  const std::string none = hosts.dir / "none";
  AccelRun run(launch_words(2, {"print", "x"}, {"--dry_run", "--mpirun_hostfile", none}));
  CHECK(run.finish() == 0);
  CHECK_THAT(run.err(), ContainsSubstring("accel: warning: hostfile ") && ContainsSubstring("No such file"));
  CHECK_THAT(run.out(), ContainsSubstring(concat("--hostfile ", none)));
}

TEST_CASE("nothing is compiled for a launch that mpirun can't do", "[launcher]") {
  const Hosts hosts;
  write_file(hosts.dir / "train.cpp", "int main() { return 0; }\n");
  AccelRun run({"launch", "--cpu", "--num_processes", "2", "--mpirun_hostfile", hosts.dir / "none",
                hosts.dir / "train.cpp"},
               {.environment = {{"XDG_CACHE_HOME", hosts.dir / "cache"}}});
  CHECK(run.finish() == 2);
  CHECK_FALSE(std::filesystem::exists(hosts.dir / "cache"));
}

TEST_CASE("a source is compiled for mpirun", "[launcher]") {
  const Hosts hosts;
  write_file(hosts.dir / "train.cpp",
             "#include <cstdio>\nint main(int, char** words) { std::puts(words[1]); }\n");
  AccelRun run({"launch", "--cpu", "--num_processes", "2", "--mpirun_hostfile", hosts.path(),
                hosts.dir / "train.cpp", "word"},
               {.environment = {{"XDG_CACHE_HOME", hosts.dir / "cache"}, {"CXXFLAGS", "-O0"}}});
  CHECK(run.finish() == 0);
  for (const int rank : {0, 1}) CHECK_THAT(run.out(), ContainsSubstring(concat("[rank ", rank, "] word\n")));
}

TEST_CASE("mpirun starts the ranks with our variables", "[launcher]") {
  const Hosts hosts;
  TempDir dir;
  write_file(dir / "config.yaml", concat("distributed_type: MULTI_CPU\nnum_processes: 2\nmpirun_config:\n"
                                         "  mpirun_hostfile: ",
                                         hosts.path(), "\n"));
  AccelRun run({"launch", "--config_file", dir / "config.yaml", "--env", "A=b c", bin("rank_script"),
                "topology", "env", "A", "env", "OMP_NUM_THREADS", "env", "ACCELERATE_CONFIG_FILE"});
  CHECK(run.finish() == 0);
  INFO(run.all());
  for (const int rank : {0, 1}) {
    CHECK_THAT(run.out(),
               ContainsSubstring(concat("[rank ", rank, "] launcher=open_mpi rank=", rank, "/2 local=")));
    CHECK_THAT(run.out(), ContainsSubstring(concat("[rank ", rank, "] A=b c\n")));
  }
  CHECK(AccelRun::count_in(run.out(), concat("ACCELERATE_CONFIG_FILE=", dir / "config.yaml")) == 2);
  CHECK(AccelRun::count_in(run.out(), "OMP_NUM_THREADS=") == 2);
  CHECK(run.err().empty());
  CHECK(run.nothing_left());
}

TEST_CASE("mpirun's ranks have log files", "[launcher]") {
  const Hosts hosts;
  TempDir dir;
  AccelRun run(words(hosts, {"print", "one", "eprint", "two"}, {"--log_dir", dir.path()}));
  CHECK(run.finish() == 0);
  CHECK(run.out().empty());
  for (const int rank : {0, 1}) {
    const std::string log = read_file(dir / concat("rank_", rank, ".log"));
    CHECK_THAT(log, ContainsSubstring("one\n") && ContainsSubstring("two\n"));
  }
}

TEST_CASE("a rank that fails under mpirun ends the job", "[launcher]") {
  const Hosts hosts;
  const auto before = shared_memory_entries();
  AccelRun run(words(hosts, {"@1", "exit", "3", "sleep"}));
  CHECK(run.finish() == 3);
  CHECK_THAT(last_lines(run.err(), 1), ContainsSubstring("accel: mpirun (pid ") &&
                                           ContainsSubstring("exited with code 3: rank 1 failed, see above"));
  CHECK(run.nothing_left());
  AccelRun again(words(hosts, {"@1", "exit", "3", "sleep"}, {"--max_restarts", "1"}));
  CHECK(again.finish() == 3);
  CHECK(AccelRun::count_in(again.err(), "restart 1 of 1") == 1);
  CHECK(again.nothing_left());
  CHECK(shared_memory_entries() == before);
}

TEST_CASE("mpirun and its ranks end with a signal or with their launcher", "[launcher]") {
  const Hosts hosts;
  for (const int number : {SIGINT, SIGTERM, SIGKILL}) {
    INFO(accelerate::signal_name(number));
    AccelRun run(words(hosts, {"env", "OMPI_COMM_WORLD_RANK", "sleep"}));
    REQUIRE(run.wait_for("OMPI_COMM_WORLD_RANK=", 2));
    run.signal(number);
    CHECK(run.finish() == 128 + number);
    if (number != SIGKILL) CHECK_THAT(run.err(), ContainsSubstring("stopping mpirun"));
    CHECK(run.nothing_left());
  }
}

TEST_CASE("ranks do not outlive an mpirun that is killed", "[launcher]") {
  const Hosts hosts;
  AccelRun run(words(hosts, {"ignore", "15", "env", "OMPI_COMM_WORLD_RANK", "sleep"}));
  REQUIRE(run.wait_for("OMPI_COMM_WORLD_RANK=", 2));
  for (const pid_t pid : run.processes()) {
    if (read_file(concat("/proc/", pid, "/comm")) == "mpirun\n") ::kill(pid, SIGKILL);
  }
  CHECK(run.finish() == 128 + SIGKILL);
  CHECK_THAT(last_lines(run.err(), 1), ContainsSubstring("mpirun (pid ") && ContainsSubstring("SIGKILL"));
  CHECK(run.nothing_left());
}
