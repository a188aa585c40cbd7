// Ctrl-C, SIGTERM, a closed terminal, and a launcher that is killed.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

void check_clean(const AccelRun& run, const std::set<std::string>& before) {
  CHECK(run.nothing_left());
  CHECK(shared_memory_entries() == before);
  AccelRun next(launch_words(2, {"print", "fine"}));
  CHECK(next.finish() == 0);
  CHECK(next.err().empty());
}

void check_few_lines(const AccelRun& run) {
  INFO(run.err());
  CHECK(lines_of(run.err()).size() <= 3);
}

}  // namespace

TEST_CASE("signals stop the job with 128 + N", "[launch]") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    INFO(accelerate::signal_name(number));
    const auto before = shared_memory_entries();
    AccelRun run(launch_words(2, {"shm", "env", "RANK", "sleep"}));
    REQUIRE(run.wait_for("RANK=", 2));
    run.signal(number);
    CHECK(run.finish() == 128 + number);
    CHECK_THAT(run.err(), ContainsSubstring(concat("accel: ", accelerate::signal_name(number),
                                                   ": stopping ranks 0 and 1")));
    check_few_lines(run);
    check_clean(run, before);
  }
}

TEST_CASE("Ctrl-C reaches the whole foreground group", "[launch]") {
  const auto before = shared_memory_entries();
  AccelRun run(launch_words(2, {"shm", "env", "RANK", "sleep"}));
  REQUIRE(run.wait_for("RANK=", 2));
  run.signal_group(SIGINT);
  CHECK(run.finish() == 128 + SIGINT);
  check_few_lines(run);
  check_clean(run, before);
}

TEST_CASE("ranks that ignore everything are killed within the grace period", "[launch]") {
  for (const int number : {SIGINT, SIGTERM}) {
    INFO(accelerate::signal_name(number));
    const auto before = shared_memory_entries();
    AccelRun run(launch_words(2, {"ignore", "15", "ignore", "2", "shm", "env", "RANK", "sleep"},
                              {"--grace_period", "0.4"}));
    REQUIRE(run.wait_for("RANK=", 2));
    run.signal(number);
    CHECK(run.finish() == 128 + number);
    CHECK_THAT(run.err(), ContainsSubstring("ranks 0 and 1 still ran after 0.4 s: killed"));
    check_few_lines(run);
    check_clean(run, before);
  }
}

TEST_CASE("a second Ctrl-C kills at once", "[launch]") {
  const auto before = shared_memory_entries();
  AccelRun run(launch_words(2, {"ignore", "15", "ignore", "2", "shm", "env", "RANK", "sleep"},
                            {"--grace_period", "3600"}));
  REQUIRE(run.wait_for("RANK=", 2));
  run.signal(SIGINT);
  REQUIRE(run.wait_for("SIGINT: stopping"));
  run.signal(SIGINT);
  CHECK(run.finish() == 128 + SIGINT);
  check_few_lines(run);
  check_clean(run, before);
}

TEST_CASE("a stopped rank is stopped for good", "[launch]") {
  AccelRun run(launch_words(2, {"env", "RANK", "@1", "kill", "19", "sleep"}));
  REQUIRE(run.wait_for("RANK=", 2));
  run.signal(SIGTERM);
  CHECK(run.finish() == 128 + SIGTERM);
  CHECK(run.nothing_left());
}

TEST_CASE("nohup keeps the job alive over SIGHUP", "[launch]") {
  TempDir dir;
  std::vector<std::string> words = {bin("accel")};
  for (const std::string& word : launch_words(2, {"env", "RANK", "await", dir / "go"})) words.push_back(word);
  AccelRun run(words, {}, "/usr/bin/nohup");
  REQUIRE(run.wait_for("RANK=", 2));
  run.signal_group(SIGHUP);
  write_file(dir / "go", "");
  CHECK(run.finish() == 0);
  CHECK(run.nothing_left());
}

TEST_CASE("ranks die with a killed launcher, their children too", "[launch]") {
  const auto before = shared_memory_entries();
  SECTION("plain") {
    AccelRun run(launch_words(2, {"shm", "env", "RANK", "sleep"}));
    REQUIRE(run.wait_for("RANK=", 2));
    run.signal(SIGKILL);
    CHECK(run.finish() == 128 + SIGKILL);
    CHECK(run.nothing_left());
    CHECK(eventually([&] { return shared_memory_entries() == before; }));
  }
  SECTION("with a child that ignores signals") {
    AccelRun run(launch_words(2, {"shm", "@0", "child", "ignore", "15", "env", "RANK", "sleep"}));
    REQUIRE(run.wait_for("RANK=", 2));
    CHECK(run.processes().size() == 5);  // launcher, guard, two ranks, a child
    run.signal(SIGKILL);
    CHECK(run.finish() == 128 + SIGKILL);
    CHECK(run.nothing_left());
    CHECK(eventually([&] { return shared_memory_entries() == before; }));
  }
  SECTION("the guard by itself is no danger") {
    AccelRun run(launch_words(2, {"env", "RANK", "sleep"}));
    REQUIRE(run.wait_for("RANK=", 2));
    std::optional<pid_t> guard;
    for (const pid_t pid : run.processes()) {
      if (read_file(concat("/proc/", pid, "/comm")) == "accel-guard\n") guard = pid;
    }
    REQUIRE(guard);
    // It holds its control socket and nothing of ours.
    for (const auto& entry : std::filesystem::directory_iterator(concat("/proc/", *guard, "/fd"))) {
      const std::string target = std::filesystem::read_symlink(entry.path());
      CHECK((target == "/dev/null" || target.starts_with("socket:")));
    }
    ::kill(*guard, SIGKILL);
    run.signal(SIGTERM);
    CHECK(run.finish() == 128 + SIGTERM);
    CHECK(run.nothing_left());
  }
}
