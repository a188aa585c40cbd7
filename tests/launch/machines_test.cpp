// Several machines: how they start, fail, stop and restart together.
#include <algorithm>

#include "launch/machines_test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

// Ranks that a launcher still has.
size_t processes_of(const AccelRun& run) {
  size_t count = 0;
  for (const pid_t pid : run.processes())
    count += read_file(concat("/proc/", pid, "/comm")) == "rank_script\n" ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("ranks of two machines know their places", "[machines]") {
  Job job(2);
  // In the wrong order: machine 1 has to wait for machine 0 to be there at all.
  AccelRun& second = job.start(1, {"topology", "env", "MASTER_ADDR"});
  AccelRun& first = job.start(0, {"topology", "env", "MASTER_ADDR"});
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
  CHECK(first.err().empty());
  CHECK(second.err().empty());
  for (int rank = 0; rank < 4; ++rank) {
    AccelRun& run = rank < 2 ? first : second;
    CHECK_THAT(run.out(),
               ContainsSubstring(concat("[rank ", rank, "] launcher=accel rank=", rank, "/4 local=", rank % 2,
                                        "/2 node=", rank / 2, "/2 addr=127.0.0.1 port=")));
    CHECK_THAT(run.out(), ContainsSubstring(concat("[rank ", rank, "] MASTER_ADDR=127.0.0.1\n")));
  }
  const std::string both = first.out() + second.out();
  const std::string port = value_after(both, " port=");
  CHECK(!port.empty());
  CHECK(AccelRun::count_in(both, " port=" + port) == 4);
  // Launchers that share a machine keep their leftovers apart.
  const std::string first_job = value_after(first.out(), " job=");
  CHECK(AccelRun::count_in(first.out(), " job=" + first_job) == 2);
  CHECK(AccelRun::count_in(second.out(), " job=" + first_job) == 0);
  CHECK(value_after(both, " port=") != std::to_string(job.port()));
  CHECK(AccelRun::count_in(first.out(), "fd=yes") == 1);
  CHECK(AccelRun::count_in(both, "fd=yes") == 1);
  WARN("4 ranks on 2 machines, start to end: " << first.since_start().count() << " ms");
}

TEST_CASE("a launcher leaves alone what another one of its job has in shared memory", "[machines]") {
  TempDir dir;
  const auto before = shared_memory_entries();
  Job job(2);
  // Machine 1 goes through its first attempt's end while machine 0's ranks still hold segments.
  const Words script = {"shm", "touch",  dir / "up", "@2#0", "await", dir / "up.0", "@2#0",    "exit",
                        "5",   "ignore", "15",       "env",  "RANK",  "await",      dir / "go"};
  AccelRun& first = job.start(0, script, {"--grace_period", "2"});
  AccelRun& second = job.start(1, script, {"--grace_period", "0.2"});
  REQUIRE(second.wait_for("exited with code 5"));
  // Ranks 0 and 1 ignore SIGTERM for two seconds, long after machine 1 has swept.
  REQUIRE(eventually([&] { return processes_of(second) == 0; }));
  CHECK(shared_memory_entries().size() == before.size() + 1);
  CHECK(first.finish() == 5);
  CHECK(second.finish() == 5);
  CHECK(shared_memory_entries() == before);
}

TEST_CASE("programs with a store of their own meet over machines too", "[machines]") {
  Job job(2);
  const Words script = {"meet", "print", "met"};
  AccelRun& first = job.start(0, script);
  AccelRun& second = job.start(1, script);
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
  CHECK(AccelRun::count_in(first.out() + second.out(), "met\n") == 4);
}

TEST_CASE("three machines with different ways to end", "[machines]") {
  TempDir dir;
  Job job(3);
  std::vector<AccelRun*> runs;
  // Machine 0 is through long before machine 2, and waits for it.
  const Words script = {"env", "GROUP_RANK", "@5", "await", dir / "go"};
  for (const int machine : {2, 0, 1}) runs.push_back(&job.start(machine, script));
  for (AccelRun* run : runs) REQUIRE(run->wait_for("GROUP_RANK=", 2));
  write_file(dir / "go", "");
  for (AccelRun* run : runs) {
    CHECK(run->finish() == 0);
    CHECK(run->err().empty());
    CHECK(run->nothing_left());
  }
}

TEST_CASE("a failing rank ends all machines with its code", "[machines]") {
  for (const int rank : {0, 3}) {
    INFO("rank " << rank);
    Job job(2);
    const Words script = {"env", "RANK", concat("@", rank), "kill", "11", "sleep"};
    AccelRun& first = job.start(0, script);
    AccelRun& second = job.start(1, script);
    CHECK(first.finish() == 128 + SIGSEGV);
    CHECK(second.finish() == 128 + SIGSEGV);
    AccelRun& here = rank < 2 ? first : second;
    AccelRun& there = rank < 2 ? second : first;
    CHECK_THAT(last_lines(here.err(), 1), ContainsSubstring(concat("rank ", rank, " (pid ")) &&
                                              ContainsSubstring("killed by SIGSEGV") &&
                                              ContainsSubstring(concat("rank ", rank ^ 1, " was stopped")));
    CHECK_THAT(last_lines(there.err(), 1), ContainsSubstring(concat("machine ", rank / 2, " (host ")) &&
                                               ContainsSubstring(concat("rank ", rank, " (pid ")) &&
                                               ContainsSubstring("killed by SIGSEGV"));
    CHECK(first.nothing_left());
    CHECK(second.nothing_left());
  }
}

TEST_CASE("ranks that lost their peers on another machine are not blamed", "[machines]") {
  TempDir dir;
  Job job(2);
  // Both ranks of machine 0 end with the code for lost peers before the culprit on machine 1 ends.
  const Words script = {"@0",    "touch",     dir / "a", "@0",        "exit", "4",  "@1",
                        "touch", dir / "a",   "@1",      "exit",      "4",    "@3", "sleep",
                        "await", dir / "a.0", "await",   dir / "a.1", "exit", "7"};
  AccelRun& first = job.start(0, script);
  AccelRun& second = job.start(1, script);
  CHECK(first.finish() == 7);
  CHECK(second.finish() == 7);
  CHECK_THAT(last_lines(first.err(), 1), ContainsSubstring("machine 1 (host ") &&
                                             ContainsSubstring("rank 2 (pid ") &&
                                             ContainsSubstring("exited with code 7"));
}

TEST_CASE("a killed launcher ends the others at once", "[machines]") {
  for (const int killed : {0, 1}) {
    INFO("machine " << killed);
    Job job(2);
    AccelRun& first = job.start(0, {"env", "RANK", "sleep"});
    AccelRun& second = job.start(1, {"env", "RANK", "sleep"});
    REQUIRE(first.wait_for("RANK=", 2));
    REQUIRE(second.wait_for("RANK=", 2));
    AccelRun& victim = killed == 0 ? first : second;
    AccelRun& other = killed == 0 ? second : first;
    const auto since = std::chrono::steady_clock::now();
    victim.signal(SIGKILL);
    CHECK(other.finish() == 4);
    WARN("launcher " << killed << " killed to end of the other: " << ms_since(since) << " ms");
    CHECK(ms_since(since) < 4000);
    CHECK_THAT(last_lines(other.err(), 1),
               ContainsSubstring(concat("machine ", killed, " (host ")) && ContainsSubstring("is lost: "));
    CHECK(other.nothing_left());
    CHECK(victim.finish() == 128 + SIGKILL);
    CHECK(victim.nothing_left());
  }
}

TEST_CASE("a stopped launcher is given up after the heartbeat timeout", "[machines]") {
  for (const int stopped : {0, 1}) {
    INFO("machine " << stopped);
    Job job(2, {"--heartbeat_timeout", "1.5"});
    AccelRun& first = job.start(0, {"env", "RANK", "sleep"});
    AccelRun& second = job.start(1, {"env", "RANK", "sleep"});
    REQUIRE(first.wait_for("RANK=", 2));
    REQUIRE(second.wait_for("RANK=", 2));
    AccelRun& victim = stopped == 0 ? first : second;
    AccelRun& other = stopped == 0 ? second : first;
    const auto since = std::chrono::steady_clock::now();
    victim.signal(SIGSTOP);
    CHECK(other.finish() == 4);
    WARN("launcher " << stopped << " stopped to end of the other: " << ms_since(since) << " ms");
    CHECK_THAT(last_lines(other.err(), 1), ContainsSubstring(concat("machine ", stopped, " (host ")) &&
                                               ContainsSubstring("nothing heard for 1.5 s"));
    CHECK(other.nothing_left());
    // Once it goes on, it finds out and ends its own ranks.
    victim.signal(SIGCONT);
    CHECK(victim.finish() == 4);
    CHECK_FALSE(victim.err().empty());
    CHECK(victim.nothing_left());
  }
}

TEST_CASE("a signal to one launcher ends all", "[machines]") {
  for (const int machine : {0, 1}) {
    for (const int number : {SIGINT, SIGTERM}) {
      const std::string name = accelerate::signal_name(number);
      INFO(name << " to machine " << machine);
      Job job(2);
      AccelRun& first = job.start(0, {"env", "RANK", "sleep"});
      AccelRun& second = job.start(1, {"env", "RANK", "sleep"});
      REQUIRE(first.wait_for("RANK=", 2));
      REQUIRE(second.wait_for("RANK=", 2));
      AccelRun& here = machine == 0 ? first : second;
      AccelRun& there = machine == 0 ? second : first;
      here.signal(number);
      CHECK(here.finish() == 128 + number);
      CHECK(there.finish() == 128 + number);
      CHECK_THAT(here.err(), ContainsSubstring(name + ": stopping ranks"));
      CHECK_THAT(there.err(), ContainsSubstring(concat("machine ", machine, " (host ")) &&
                                  ContainsSubstring("was stopped by " + name + ": stopping ranks"));
      CHECK(lines_of(here.err()).size() == 1);
      CHECK(lines_of(there.err()).size() == 1);
      CHECK(first.nothing_left());
      CHECK(second.nothing_left());
    }
  }
}

TEST_CASE("a signal while waiting for others", "[machines]") {
  Job job(2);
  AccelRun& second = job.start(1, {"print", "started"});
  // Its handler is in place once its guard against a second instance is; nothing of it can be seen but this.
  REQUIRE(eventually([&] {
    const std::string status = read_file(concat("/proc/", second.pid(), "/status"));
    const size_t at = status.find("SigCgt:\t");
    return at != std::string::npos && (std::stoull(status.substr(at + 8, 16), nullptr, 16) & 2U) != 0;
  }));
  second.signal(SIGINT);
  CHECK(second.finish() == 130);
  CHECK(second.nothing_left());
}

TEST_CASE("all machines restart together", "[machines]") {
  SECTION("until it works") {
    Job job(2, {"--max_restarts", "2"});
    const Words script = {"@3#0", "exit", "3", "@#0", "sleep", "topology"};
    AccelRun& first = job.start(0, script);
    AccelRun& second = job.start(1, script);
    CHECK(first.finish() == 0);
    CHECK(second.finish() == 0);
    const std::string both = first.out() + second.out();
    CHECK(AccelRun::count_in(both, "restarts=1") == 4);
    CHECK(AccelRun::count_in(first.out(), "fd=yes") == 1);
    CHECK(AccelRun::count_in(both, " port=" + value_after(both, " port=")) == 4);
    for (AccelRun* run : {&first, &second})
      CHECK(AccelRun::count_in(run->err(), "restart 1 of 2 of all machines") == 1);
    CHECK_THAT(first.err(), ContainsSubstring("machine 1 (host ") && ContainsSubstring("exited with code 3"));
    CHECK(AccelRun::count_in(second.err(), "exited with code 3") == 1);
  }
  SECTION("until they are used up") {
    Job job(2, {"--max_restarts", "1"});
    AccelRun& first = job.start(0, {"@0", "exit", "3", "sleep"});
    AccelRun& second = job.start(1, {"@0", "exit", "3", "sleep"});
    CHECK(first.finish() == 3);
    CHECK(second.finish() == 3);
    CHECK(AccelRun::count_in(first.err(), "exited with code 3") == 2);
    CHECK(AccelRun::count_in(second.err(), "exited with code 3") == 2);
    CHECK(first.nothing_left());
  }
  SECTION("not after a signal") {
    Job job(2, {"--max_restarts", "1"});
    AccelRun& first = job.start(0, {"env", "RANK", "sleep"});
    AccelRun& second = job.start(1, {"env", "RANK", "sleep"});
    REQUIRE(second.wait_for("RANK=", 2));
    REQUIRE(first.wait_for("RANK=", 2));
    second.signal(SIGINT);
    CHECK(first.finish() == 130);
    CHECK(second.finish() == 130);
  }
  SECTION("with a machine that comes back") {
    Job job(2, {"--max_restarts", "1"});
    const Words script = {"topology", "@#0", "sleep"};
    AccelRun& first = job.start(0, script);
    AccelRun& second = job.start(1, script);
    REQUIRE(first.wait_for("restarts=0", 2));
    REQUIRE(second.wait_for("restarts=0", 2));
    second.signal(SIGKILL);
    REQUIRE(first.wait_for("restart 1 of 1"));
    AccelRun& again = job.start(1, script);
    CHECK(first.finish() == 0);
    CHECK(again.finish() == 0);
    CHECK(AccelRun::count_in(again.out(), "restarts=1") == 2);
  }
}

TEST_CASE("machines with one rank each say whose a line is, and repeat its errors", "[machines]") {
  const int port = free_port();
  const auto words = [&](int machine) {
    std::string script = "echo hello; [ $RANK = 0 ] && sleep 60; echo THE-ERROR >&2; sleep 0.3; ";
    script += "for i in 1 2 3 4 5 6 7 8 9; do echo out $i >&2; done; exit 9";
    return Words{"launch",
                 "--cpu",
                 "--num_processes",
                 "2",
                 "--num_machines",
                 "2",
                 "--machine_rank",
                 std::to_string(machine),
                 "--main_process_ip",
                 "127.0.0.1",
                 "--main_process_port",
                 std::to_string(port),
                 "--connect_timeout",
                 "25",
                 "/bin/sh",
                 "-c",
                 script};
  };
  AccelRun first(words(0));
  AccelRun second(words(1));
  CHECK(second.finish() == 9);
  CHECK(first.finish() == 9);
  CHECK(first.out() == "[rank 0] hello\n");
  CHECK(second.out() == "[rank 1] hello\n");
  CHECK_THAT(second.err(), ContainsSubstring("[rank 1] THE-ERROR\n"));
}

TEST_CASE("machine 0 says which machine was refused and why", "[machines]") {
  Job job(2);
  AccelRun& first = job.start(0, {"print", "x"});
  // Four processes a machine against two.
  Words words = job.words(1, {"print", "x"});
  *(std::find(words.begin(), words.end(), "--num_processes") + 1) = "8";
  AccelRun other(words);
  const auto code = other.finish();
  INFO(other.all());
  CHECK(code.value_or(-1) == 3);
  REQUIRE(first.wait_for("was refused: num_processes is 8 (4 a machine)"));
  AccelRun& again = job.start(0, {"print", "x"});
  CHECK(again.finish() == 3);
  CHECK_THAT(again.err(), ContainsSubstring("is taken") && ContainsSubstring("needs another --machine_rank"));
  AccelRun& second = job.start(1, {"print", "x"});
  CHECK(second.finish() == 0);
  CHECK(first.finish() == 0);
}
