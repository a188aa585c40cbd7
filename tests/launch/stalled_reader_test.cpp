// A reader of the launcher's output that takes nothing: a pager, a hung collector, a terminal after Ctrl-S.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

constexpr const char* kFlood = "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done";

std::vector<std::string> shell(const std::string& command) {
  return {"launch", "--cpu", "--num_processes", "2", "--grace_period", "2", "/bin/sh", "-c", command};
}

// AccelRun reads only where it waits for text, so that a pause here is a stalled reader.
void let_it_fill() {
  ::usleep(1'000'000);
}

// From now until no process of the run is left, without reading.
int64_t ms_until_gone(const AccelRun& run) {
  const auto start = run.since_start();
  CHECK(run.nothing_left());
  return (run.since_start() - start).count();
}

}  // namespace

TEST_CASE("signals stop the job although nobody reads", "[launch]") {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    INFO(accelerate::signal_name(number));
    AccelRun run(shell(kFlood));
    let_it_fill();
    run.signal(number);
    CHECK(ms_until_gone(run) < 8000);
    CHECK(run.finish() == 128 + number);
  }
}

TEST_CASE("ranks that ignore signals are killed although nobody reads", "[launch]") {
  AccelRun run(shell(concat("trap '' TERM; ", kFlood)));
  let_it_fill();
  run.signal(SIGTERM);
  CHECK(ms_until_gone(run) < 10000);
  CHECK(run.finish() == 128 + SIGTERM);
  AccelRun twice(shell(concat("trap '' TERM INT; ", kFlood)));
  let_it_fill();
  twice.signal(SIGINT);
  twice.signal(SIGINT);
  CHECK(ms_until_gone(twice) < 5000);
  CHECK(twice.finish() == 128 + SIGINT);
}

TEST_CASE("a failure is noticed although nobody reads", "[launch]") {
  AccelRun run(shell(concat("[ $RANK = 1 ] && { sleep 1; exit 3; }; ", kFlood)));
  CHECK(ms_until_gone(run) < 8000);
  CHECK(run.finish() == 3);
  CHECK_THAT(run.err(), ContainsSubstring("rank 1 (pid ") && ContainsSubstring("exited with code 3"));
  // Whole lines, and what is missing is missing at the end.
  for (const std::string& line : lines_of(run.out())) {
    if (line.size() == std::string("[rank 0] ").size() + 50 || line.starts_with("accel: ")) continue;
    FAIL_CHECK(line);
  }
}

TEST_CASE("a slow reader gets every line", "[launch]") {
  AccelRun run(shell("i=0; while [ $i -lt 40000 ]; do echo \"$i bbbbbbbbbbbbbbbbbbbb\"; i=$((i+1)); done"));
  let_it_fill();
  CHECK_FALSE(run.processes().empty());
  CHECK(run.finish() == 0);
  int next[2] = {0, 0};
  bool intact = true;
  for (const std::string& line : lines_of(run.out())) {
    const int rank = line.starts_with("[rank 1]") ? 1 : 0;
    intact = intact && line == concat("[rank ", rank, "] ", next[rank]++, " bbbbbbbbbbbbbbbbbbbb");
  }
  CHECK(intact);
  CHECK(next[0] == 40000);
  CHECK(next[1] == 40000);
}

TEST_CASE("what is left at the end waits for the reader, or for a signal", "[launch]") {
  // Less than the launcher keeps, more than the pipe does: the ranks end, their output has not been read.
  const std::string some =
      "i=0; while [ $i -lt 2000 ]; do echo \"$i bbbbbbbbbbbbbbbbbbbbbbbbbb\"; i=$((i+1)); done";
  const auto only_launcher_left = [](const AccelRun& run) {
    let_it_fill();
    return eventually([&] { return run.processes().size() == 2; });  // and its guard
  };
  AccelRun patient(shell(some));
  REQUIRE(only_launcher_left(patient));
  ::usleep(200'000);
  CHECK(patient.finish() == 0);
  CHECK(lines_of(patient.out()).size() == 4000);
  AccelRun stopped(shell(some));
  REQUIRE(only_launcher_left(stopped));
  ::usleep(200'000);
  stopped.signal(SIGTERM);
  CHECK(ms_until_gone(stopped) < 4000);
  CHECK(stopped.finish() == 128 + SIGTERM);
}
