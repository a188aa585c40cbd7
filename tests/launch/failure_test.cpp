// A rank that fails: who is blamed, with which code, and that nothing stays behind.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

// What must hold after every run.
void check_clean(const AccelRun& run, const std::set<std::string>& before) {
  CHECK(run.nothing_left());
  CHECK(shared_memory_entries() == before);
}

}  // namespace

TEST_CASE("a killed rank ends the job and is named", "[launch]") {
  struct Case {
    int rank;
    int signal;
    const char* name;
  };
  for (const Case& c :
       {Case{1, SIGKILL, "SIGKILL"}, Case{0, SIGKILL, "SIGKILL"}, Case{1, SIGSEGV, "SIGSEGV"}}) {
    INFO("rank " << c.rank << " " << c.name);
    const auto before = shared_memory_entries();
    AccelRun run(launch_words(2, {"shm", "env", "RANK", "sleep"}));
    REQUIRE(run.wait_for("RANK=", 2));
    // From outside, as the kernel's out-of-memory killer would.
    std::optional<pid_t> victim;
    for (const pid_t pid : run.processes()) {
      const std::string environment = '\0' + read_file(concat("/proc/", pid, "/environ"));
      if (environment.find(concat('\0', "RANK=", c.rank, '\0')) != std::string::npos) victim = pid;
    }
    REQUIRE(victim);
    const auto killed_at = std::chrono::steady_clock::now();
    ::kill(*victim, c.signal);
    CHECK(run.finish() == 128 + c.signal);
    const auto taken = std::chrono::steady_clock::now() - killed_at;
    const auto taken_ms = std::chrono::duration_cast<std::chrono::milliseconds>(taken).count();
    WARN("kill to end of launcher: " << taken_ms << " ms");
    CHECK(taken_ms < 5000);
    CHECK_THAT(last_lines(run.err(), 1),
               ContainsSubstring(concat("rank ", c.rank, " (pid ", *victim, ", host ")) &&
                   ContainsSubstring(concat("killed by ", c.name)) &&
                   ContainsSubstring(concat("rank ", 1 - c.rank, " was stopped")));
    check_clean(run, before);
    // The port is free again: at once, the same explicit port works.
    AccelRun next(launch_words(2, {"print", "fine"}, {"--main_process_port", "29500"}));
    CHECK(next.finish() == 0);
    CHECK(next.err().empty());
  }
}

TEST_CASE("a rank's exit code is the job's", "[launch]") {
  const auto before = shared_memory_entries();
  AccelRun run(launch_words(3, {"shm", "@1", "exit", "3", "sleep"}));
  CHECK(run.finish() == 3);
  CHECK_THAT(run.err(), ContainsSubstring("rank 1 (pid ") && ContainsSubstring("exited with code 3") &&
                            ContainsSubstring("ranks 0 and 2 were stopped"));
  CHECK(AccelRun::count_in(run.err(), "rank 1") == 1);
  check_clean(run, before);
}

TEST_CASE("an exception's text stands in the last lines, once", "[launch]") {
  const auto before = shared_memory_entries();
  AccelRun run(launch_words(2, {"@1", "throw", "boom 42", "sleep"}));
  CHECK(run.finish() == 128 + SIGABRT);
  CHECK_THAT(last_lines(run.err(), 10), ContainsSubstring("boom 42") && ContainsSubstring("rank 1"));
  CHECK(AccelRun::count_in(run.err(), "boom 42") == 1);
  check_clean(run, before);
}

TEST_CASE("errors out of sight are repeated at the end", "[launch]") {
  TempDir dir;
  std::vector<std::string> script = {"@1", "eprint", "the reason", "await", dir / "seen"};
  for (int i = 0; i < 12; ++i) script.insert(script.end(), {"@0", "eprint", concat("noise ", i)});
  script.insert(script.end(), {"await", dir / "noisy", "@1", "exit", "5", "sleep"});
  AccelRun run(launch_words(2, script));
  REQUIRE(run.wait_for("the reason"));
  write_file(dir / "seen", "");
  REQUIRE(run.wait_for("noise 11"));
  write_file(dir / "noisy", "");
  CHECK(run.finish() == 5);
  CHECK_THAT(last_lines(run.err(), 3), ContainsSubstring("last errors of rank 1") &&
                                           ContainsSubstring("the reason") &&
                                           ContainsSubstring("exited with code 5"));
  CHECK(run.nothing_left());
}

TEST_CASE("ranks that lost their peers are not blamed for the one that failed", "[launch]") {
  TempDir dir;
  // Ranks 0 and 2 end with the code for lost peers before the culprit ends.
  AccelRun run(launch_words(3, {"@0", "touch", dir / "a", "@2", "touch", dir / "a", "@0", "exit", "4", "@2",
                                "exit", "4", "await", dir / "a.0", "await", dir / "a.2", "exit", "7"}));
  CHECK(run.finish() == 7);
  CHECK_THAT(last_lines(run.err(), 1),
             ContainsSubstring("rank 1 (pid ") && ContainsSubstring("exited with code 7"));
  CHECK(run.nothing_left());
}

TEST_CASE("a rank that lost its peers is blamed when no one else fails", "[launch]") {
  AccelRun run(launch_words(2, {"@0", "exit", "4", "sleep"}));
  CHECK(run.finish() == 4);
  CHECK_THAT(run.err(), ContainsSubstring("rank 0 (pid ") && ContainsSubstring("lost its peers") &&
                            ContainsSubstring("rank 1 was stopped"));
  CHECK(run.nothing_left());

  AccelRun early(launch_words(2, {"@1", "exit", "0", "exit", "4"}));
  CHECK(early.finish() == 4);
  CHECK_THAT(early.err(), ContainsSubstring("rank 1 had already ended with code 0"));
}

TEST_CASE("success is silent and leaves nothing", "[launch]") {
  const auto before = shared_memory_entries();
  AccelRun run(launch_words(2, {"shm"}));
  CHECK(run.finish() == 0);
  CHECK(run.all().empty());
  check_clean(run, before);
}

TEST_CASE("a stubborn rest is killed after the grace period", "[launch]") {
  TempDir dir;
  AccelRun run(launch_words(
      2, {"@0", "ignore", "15", "@0", "touch", dir / "a", "await", dir / "a.0", "@1", "exit", "9", "sleep"},
      {"--grace_period", "0.3"}));
  CHECK(run.finish() == 9);
  CHECK_THAT(run.err(), ContainsSubstring("rank 0 still ran after 0.3 s: killed") &&
                            ContainsSubstring("rank 1 (pid ") && ContainsSubstring("exited with code 9"));
  CHECK(run.nothing_left());
}

TEST_CASE("children of ranks end with the job", "[launch]") {
  SECTION("after a failure") {
    AccelRun run(launch_words(2, {"@0", "child", "env", "RANK", "@1", "exit", "6", "sleep"},
                              {"--grace_period", "0.3"}));
    CHECK(run.finish() == 6);
    CHECK(run.nothing_left());
  }
  SECTION("after success") {
    AccelRun run(launch_words(2, {"@0", "child"}));
    CHECK(run.finish() == 0);
    CHECK(run.all().empty());
    CHECK(run.nothing_left());
  }
}

TEST_CASE("restarts start all ranks afresh", "[launch]") {
  const auto before = shared_memory_entries();
  SECTION("until it works") {
    AccelRun run(launch_words(
        2, {"env", "TORCHELASTIC_RESTART_COUNT", "shm", "@1#0", "exit", "3", "@#0", "sleep", "topology"},
        {"--max_restarts", "2"}));
    CHECK(run.finish() == 0);
    CHECK(AccelRun::count_in(run.out(), "TORCHELASTIC_RESTART_COUNT=1") == 2);
    CHECK(AccelRun::count_in(run.out(), "restarts=1") == 2);
    CHECK(AccelRun::count_in(run.out(), "fd=yes") == 1);
    CHECK_THAT(run.err(), ContainsSubstring("restart 1 of 2 of all ranks"));
    check_clean(run, before);
  }
  SECTION("until they are used up") {
    AccelRun run(launch_words(2, {"@1", "exit", "3", "sleep"}, {"--max_restarts", "1"}));
    CHECK(run.finish() == 3);
    CHECK(AccelRun::count_in(run.err(), "exited with code 3") == 2);
    CHECK(AccelRun::count_in(run.err(), "restart 1 of 1") == 1);
    check_clean(run, before);
  }
}

TEST_CASE("quiet restarts say why and no more", "[launch]") {
  AccelRun run(launch_words(2, {"@1", "exit", "3", "sleep"}, {"--max_restarts", "1", "--quiet"}));
  CHECK(run.finish() == 3);
  CHECK(AccelRun::count_in(run.err(), "exited with code 3") == 2);
  CHECK(AccelRun::count_in(run.err(), "restart") == 0);
}

TEST_CASE("too many open files are told with the limit", "[launch]") {
  const std::string words = "launch --cpu --quiet --num_processes 40 " + bin("rank_script");
  AccelRun run({"-c", concat("ulimit -n 30 && exec ", bin("accel"), " ", words)}, {}, "/bin/sh");
  CHECK(run.finish() == 3);
  CHECK_THAT(run.err(), ContainsSubstring("Too many open files") && ContainsSubstring("ulimit -n"));
  CHECK(run.nothing_left());
}

TEST_CASE("many ranks start and end", "[launch]") {
  AccelRun run(launch_words(64, {"env", "RANK"}));
  CHECK(run.finish() == 0);
  WARN("64 ranks: " << run.since_start().count() << " ms");
  CHECK(AccelRun::count_in(run.out(), "RANK=") == 64);
  for (int rank = 0; rank < 64; ++rank)
    CHECK_THAT(run.out(), ContainsSubstring(concat("[rank ", rank, "] RANK=", rank, "\n")));
  CHECK(run.nothing_left());
}
