// Several machines: how they find one another, and who is refused.
#include <algorithm>

#include "launch/machines_test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

TEST_CASE("launchers that do not fit are refused, and the job goes on", "[machines]") {
  Job job(3);
  const Words script = {"print", "started"};
  AccelRun& first = job.start(0, script);
  AccelRun& second = job.start(1, script);
  const auto refused = [&](Words words, const std::string& said, const std::string& also) {
    AccelRun run(std::move(words));
    CHECK(run.finish() == 3);
    CHECK_THAT(run.err(), ContainsSubstring(said) && ContainsSubstring(also));
    CHECK(run.out().empty());
  };
  REQUIRE(eventually([&] {
    Socket probe(job.port());
    return ::connect(probe.fd.get(), probe.get(), sizeof probe.address) == 0;
  }));
  refused(job.words(0, script), "taken", "--main_process_port");
  refused(job.words(2, script, {"--rdzv_id", "other"}), "--rdzv_id", "another");
  Words more = job.words(2, script);
  more[3] = std::to_string(9);  // --num_processes
  refused(more, "num_processes is 9", "6 (2 a machine)");
  AccelRun& third = job.start(2, script);
  for (AccelRun* run : {&first, &second, &third}) {
    CHECK(run->finish() == 0);
    CHECK(AccelRun::count_in(run->out(), "started") == 2);
  }
}

TEST_CASE("machines that do not come are named", "[machines]") {
  Job job(2, {}, "0.4");
  AccelRun& first = job.start(0, {"print", "started"});
  CHECK(first.finish() == 3);
  CHECK_THAT(first.err(), ContainsSubstring("waiting for machine_rank 1 of 2 machines; here: 0 (host "));
  AccelRun& second = job.start(1, {"print", "started"});
  CHECK(second.finish() == 3);
  CHECK_THAT(second.err(), ContainsSubstring("can't reach machine 0 at 127.0.0.1") &&
                               ContainsSubstring("Connection refused") &&
                               ContainsSubstring("--main_process_ip"));
}

TEST_CASE("a stranger on the port is told and does no harm", "[machines]") {
  Job job(2);
  AccelRun& first = job.start(0, {"print", "started"});
  Socket stranger(job.port());
  REQUIRE(
      eventually([&] { return ::connect(stranger.fd.get(), stranger.get(), sizeof stranger.address) == 0; }));
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  REQUIRE(::send(stranger.fd.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  char answer[512] = {};
  REQUIRE(::recv(stranger.fd.get(), answer, sizeof answer - 1, 0) > 0);
  CHECK_THAT(std::string(answer), ContainsSubstring("accel launch"));
  AccelRun& second = job.start(1, {"print", "started"});
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
}

TEST_CASE("a port that is taken is an error with several machines", "[machines]") {
  Job job(2);
  Socket holder(job.port());
  REQUIRE(::bind(holder.fd.get(), holder.get(), sizeof holder.address) == 0);
  REQUIRE(::listen(holder.fd.get(), 1) == 0);
  AccelRun& first = job.start(0, {"print", "started"});
  CHECK(first.finish() == 3);
  CHECK_THAT(first.err(), ContainsSubstring(concat("port ", job.port(), " of 127.0.0.1 is taken")) &&
                              ContainsSubstring("--main_process_port"));
}

TEST_CASE("the batch system's number of a machine is used and said", "[machines]") {
  Job job(2);
  Words words = job.words(1, {"env", "GROUP_RANK"});
  const auto flag = std::find(words.begin(), words.end(), "--machine_rank");
  words.erase(flag, flag + 2);
  AccelRun second(words, {.environment = {{"SLURM_NODEID", "1"}}});
  AccelRun& first = job.start(0, {"env", "GROUP_RANK"});
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
  CHECK(AccelRun::count_in(second.out(), "GROUP_RANK=1\n") == 2);
  CHECK_THAT(second.err(), ContainsSubstring("machine_rank 1 (from SLURM_NODEID)"));
}

TEST_CASE("machines number themselves by arrival, and go on with fewer", "[machines]") {
  const std::string port = std::to_string(free_port());
  const auto start = [&](const Words& script, const Words& flags) {
    Words words = {"launch", "--cpu", "--nproc_per_node", "2", "--main_process_ip", "127.0.0.1"};
    words.insert(words.end(), {"--main_process_port", port, "--last_call", "0.3", "--connect_timeout", "25"});
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back(bin("rank_script"));
    words.insert(words.end(), script.begin(), script.end());
    return std::make_unique<AccelRun>(words);
  };
  SECTION("all of them") {
    const auto first = start({"topology"}, {"--nnodes", "2"});
    const auto second = start({"topology"}, {"--nnodes", "2"});
    CHECK(first->finish() == 0);
    CHECK(second->finish() == 0);
    for (int rank = 0; rank < 4; ++rank)
      CHECK_THAT(first->out() + second->out(),
                 ContainsSubstring(concat("rank=", rank, "/4 local=", rank % 2)));
  }
  SECTION("one is lost, another comes") {
    TempDir dir;
    const Words flags = {"--nnodes", "1:3", "--max_restarts", "2"};
    const Words script = {"topology", "await", dir / "go"};
    const auto first = start(script, flags);
    REQUIRE(first->wait_for("rank=1/2"));  // alone, after the last call
    const auto second = start(script, flags);
    REQUIRE(second->wait_for("joins at its next restart"));
    const auto third = start(script, flags);
    REQUIRE(third->wait_for("joins at its next restart"));
    for (const pid_t pid : first->processes()) {
      const std::string environment = '\0' + read_file(concat("/proc/", pid, "/environ"));
      if (environment.find(concat('\0', "RANK=1", '\0')) != std::string::npos) ::kill(pid, SIGKILL);
    }
    REQUIRE(first->wait_for("/6 local=", 2));
    REQUIRE(third->wait_for("/6 local=", 2));
    third->signal(SIGKILL);
    REQUIRE(first->wait_for("/4 local=", 2));
    REQUIRE(second->wait_for("/4 local=", 2));
    write_file(dir / "go", "");
    CHECK(first->finish() == 0);
    CHECK(second->finish() == 0);
    CHECK_THAT(first->err(), ContainsSubstring("restart 1 of 2") && ContainsSubstring("restart 2 of 2") &&
                                 ContainsSubstring("is lost"));
    CHECK(third->nothing_left());
  }
  SECTION("flags that contradict") {
    const auto run = start({"topology"}, {"--nnodes", "2", "--machine_rank", "1"});
    CHECK(run->finish() == 2);
    CHECK_THAT(run->err(), ContainsSubstring("--nnodes and --machine_rank exclude one another"));
  }
}
