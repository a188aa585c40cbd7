// Whole jobs of real processes: the ways to start them, and the ways they end.
#include <sys/wait.h>

#include <algorithm>
#include <cmath>

#include "accelerate/core/deadline.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

std::vector<std::string> job(int processes, std::vector<std::string> arguments) {
  std::vector<std::string> out = {"launch", "--cpu", "--num_processes", std::to_string(processes),
                                  bin("job_torch")};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

// "rank 1 of 2 pid 4711" -> 4711
pid_t pid_of(const AccelRun& run, int rank, int size) {
  const std::string text = concat("rank ", rank, " of ", size, " pid ");
  const size_t at = run.out().find(text);
  if (at == std::string::npos) return -1;
  return static_cast<pid_t>(std::strtol(run.out().c_str() + at + text.size(), nullptr, 10));
}

// After any end of a job: nothing runs, nothing lies in /dev/shm, and the same command works at once.
void check_clean(const AccelRun& run, const std::set<std::string>& shared_before) {
  CHECK(run.nothing_left());
  CHECK(shared_memory_entries() == shared_before);
  AccelRun again(job(2, {"--steps", "2"}));
  CHECK(again.finish() == 0);
  CHECK(AccelRun::count_in(again.out(), "step 1") == 2);
}

// The losses that 01_mnist --losses prints, in order.
std::vector<double> losses(const std::string& text) {
  std::vector<double> out;
  for (const std::string& line : lines_of(text)) {
    const size_t at = line.find(" loss ");
    if (line.find("step ") != std::string::npos && at != std::string::npos) {
      out.push_back(std::strtod(line.c_str() + at + 6, nullptr));
    }
  }
  return out;
}

std::vector<std::string> mnist(int64_t batch_size) {
  const char* data = std::getenv("ACCELERATE_TEST_DATA");
  REQUIRE(data != nullptr);
  INFO(data);
  REQUIRE(std::filesystem::exists(data));  // third_party/setup.sh puts it there
  return {bin("01_mnist"),           "--data", data, "--epochs", "1", "--losses", "--batch_size",
          std::to_string(batch_size)};
}

// Equal sums in another order differ in the last bits, and training lets that grow.
void check_equal(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  double early = 0;
  double late = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    double& worst = i < 10 ? early : late;
    worst = std::max(worst, std::abs(got[i] - want[i]));
  }
  std::printf("%s: %zu steps, largest difference %.1e in the first 10, %.1e later\n", what.c_str(),
              got.size(), early, late);
  CHECK(early < 2e-5);
  CHECK(late < 5e-3);
}

}  // namespace

TEST_CASE("MNIST trains equally alone, with 2 and 4 ranks, under mpirun, and with torchrun's variables") {
  const auto run = [](std::vector<std::string> words, const RunOptions& options = {},
                      const std::string& program = bin("accel")) {
    AccelRun job(std::move(words), options, program);
    const auto code = job.finish();
    INFO(job.all());
    CHECK(code == 0);
    CHECK(job.nothing_left());
    return losses(job.out());
  };
  const auto launched = [&](int processes, int64_t batch_size) {
    std::vector<std::string> words = {"launch", "--cpu", "--num_processes", std::to_string(processes)};
    for (const std::string& word : mnist(batch_size)) words.push_back(word);
    return run(words);
  };
  std::vector<std::string> alone = mnist(64);
  const std::string program = alone.front();
  alone.erase(alone.begin());
  const std::vector<double> want = run(alone, {}, program);
  REQUIRE(want.size() == 62);
  CHECK(want.back() < want.front() / 2);  // it learns
  check_equal(launched(2, 32), want, "accel launch, 2 ranks");
  check_equal(launched(4, 16), want, "accel launch, 4 ranks");

  std::vector<std::string> mpi = {"--allow-run-as-root", "--oversubscribe", "-n", "2"};
  for (const std::string& word : mnist(32)) mpi.push_back(word);
  check_equal(run(mpi, {}, "/usr/bin/mpirun"), want, "mpirun, 2 ranks");

  // As torchrun 2.11 sets them, captured, but for the port; without its agent, rank 0 serves the store.
  std::vector<std::string> script = mnist(32);
  std::string command;
  for (const std::string& word : script) command += shell_quote(word) + " ";
  const std::string common =
      "GROUP_RANK=0 GROUP_WORLD_SIZE=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$PORT "
      "ROLE_NAME=default "
      "ROLE_WORLD_SIZE=2 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_RUN_ID=none "
      "TORCHELASTIC_USE_AGENT_STORE=False WORLD_SIZE=2 OMP_NUM_THREADS=1 ";
  const std::string shell =
      "PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
      "print(s.getsockname()[1])')\n" +
      common + "RANK=1 LOCAL_RANK=1 ROLE_RANK=1 " + command + "& PEER=$!; " + common +
      "RANK=0 LOCAL_RANK=0 ROLE_RANK=0 " + command + "&& wait $PEER";
  check_equal(run({"-c", shell}, {}, "/bin/bash"), want, "torchrun's variables, 2 ranks");
}

TEST_CASE("a rank killed in mid-training ends the job with its name, and leaves nothing") {
  const auto shared_before = shared_memory_entries();
  for (const auto& [rank, signal, name] :
       {std::tuple(1, SIGKILL, "SIGKILL"), std::tuple(0, SIGKILL, "SIGKILL"),
        std::tuple(1, SIGSEGV, "SIGSEGV")}) {
    AccelRun run(job(2, {"--steps", "100000", "--step_ms", "2"}));
    REQUIRE(run.wait_for("step 10\n", 2));
    const pid_t pid = pid_of(run, rank, 2);
    REQUIRE(pid > 1);
    REQUIRE(::kill(pid, signal) == 0);
    CHECK(run.finish() == 128 + signal);
    INFO(last_lines(run.err(), 10));
    CHECK_THAT(last_lines(run.err(), 10),
               ContainsSubstring(concat("rank ", rank, " (pid ", pid)) && ContainsSubstring(name));
    check_clean(run, shared_before);
  }
}

TEST_CASE("a rank that throws, exits or leaves early while the other waits in a collective") {
  const auto shared_before = shared_memory_entries();
  for (const auto& [how, code] : {std::pair("throw", 1), std::pair("exit", 3), std::pair("return", 4)}) {
    AccelRun run(job(2, {"--steps", "1000", "--fail", how}));
    CHECK(run.finish() == code);
    const std::string tail = last_lines(run.err(), 10);
    INFO(run.err());
    if (how == std::string("throw")) {
      CHECK(AccelRun::count_in(tail, "boom 42") == 1);
      CHECK_THAT(tail, ContainsSubstring("rank 1 (pid"));
    } else if (how == std::string("exit")) {
      CHECK_THAT(tail, ContainsSubstring("rank 1 (pid") && ContainsSubstring("exited with code 3"));
    } else {
      CHECK_THAT(tail, ContainsSubstring("rank 1 left after 5 backward passes"));
    }
    check_clean(run, shared_before);
  }
}

TEST_CASE("ranks that disagree are told what each of them does, on every rank") {
  const auto shared_before = shared_memory_entries();
  const auto fails = [&](const std::string& how, const std::string& backend, bool debug) {
    RunOptions options;
    if (debug) options.environment.emplace_back("ACCELERATE_DEBUG_MODE", "1");
    AccelRun run(job(2, {"--steps", "20", "--fail", how, "--fail_step", "7", "--backend", backend}), options);
    const auto code = run.finish();
    CHECK(code != 0);
    CHECK(run.nothing_left());
    return run.err();
  };
  for (const auto& [backend, debug] : {std::pair("shm", false), std::pair("gloo", true)}) {
    INFO(backend);
    const std::string shape = fails("shape", backend, debug);
    INFO(shape);
    CHECK_THAT(shape, ContainsSubstring("rank 0: all_gather") && ContainsSubstring("rank 1: all_gather"));
    CHECK_THAT(shape, ContainsSubstring("[2]") && ContainsSubstring("[3]"));
    const std::string dtype = fails("dtype", backend, debug);
    INFO(dtype);
    CHECK_THAT(dtype, ContainsSubstring("rank 0: all_gather") && ContainsSubstring("rank 1: all_gather"));
    // Early stopping on one rank only: the other is in the backward of step 7.
    const std::string left = fails("break", backend, debug);
    INFO(left);
    CHECK_THAT(left, ContainsSubstring("rank 0: all_reduce") || ContainsSubstring("rank 0: backward"));
    CHECK_THAT(left, ContainsSubstring("rank 1: all_gather"));
    // A batch left out: rank 1 is a step ahead, and ends first.
    CHECK_THAT(fails("skip", backend, debug), ContainsSubstring("rank 1 left after 19 backward passes"));
  }
  // Gloo itself ends the process; what it was in, and the others, is told before.
  const std::string ended = fails("shape", "gloo", false);
  INFO(ended);
  CHECK_THAT(ended, ContainsSubstring("data of another size than expected came in all_gather #") &&
                        ContainsSubstring(" of Float [2]") && ContainsSubstring(" of Float [3]") &&
                        ContainsSubstring("ACCELERATE_DEBUG_MODE=1"));
  CHECK(shared_memory_entries() == shared_before);
}

TEST_CASE("a rank that is stopped in training is told about, and the error of the others says so too") {
  for (const std::string backend : {"shm", "gloo"}) {
    AccelRun run(job(2, {"--steps", "100000", "--step_ms", "2", "--backend", backend, "--timeout_ms", "4000",
                         "--notice_ms", "1500"}));
    REQUIRE(run.wait_for("step 200\n", 2));
    REQUIRE(::kill(pid_of(run, 1, 2), SIGSTOP) == 0);
    CHECK(run.finish() != 0);
    INFO(backend << "\n" << run.err());
    CHECK_THAT(run.err(), ContainsSubstring("warning: still in all_reduce #"));
    const size_t error = run.err().find("error: rank 0: ");
    REQUIRE(error != std::string::npos);
    CHECK_THAT(run.err().substr(error),
               ContainsSubstring("at all_reduce #") &&
                   ContainsSubstring("rank 1 gives no sign of life (killed, stopped"));
    CHECK(run.nothing_left());
  }
}

TEST_CASE(
    "Ctrl-C and a killed launcher leave no process and no shared memory, also while data is being built") {
  const auto shared_before = shared_memory_entries();
  struct Case {
    std::vector<std::string> arguments;
    std::string moment;
    int signal;
    std::optional<int> code;
  };
  const std::vector<std::string> training = {"--steps", "100000", "--step_ms", "2", "--data_mb", "8"};
  const std::vector<std::string> loading = {"--data_mb", "8", "--load_ms", "60000"};
  for (const Case& test :
       {Case{training, "step 10\n", SIGINT, 130}, Case{training, "step 10\n", SIGKILL, 137},
        Case{loading, "loading", SIGINT, 130}, Case{loading, "loading", SIGKILL, 137}}) {
    INFO(test.moment << " signal " << test.signal);
    AccelRun run(job(2, test.arguments));
    REQUIRE(run.wait_for(test.moment));
    run.signal(test.signal);
    CHECK(run.finish() == test.code);
    check_clean(run, shared_before);
  }
  // The builder alone is killed.
  AccelRun run(job(2, loading));
  REQUIRE(run.wait_for("loading"));
  REQUIRE(run.wait_for("rank 0 of 2"));
  REQUIRE(::kill(pid_of(run, 0, 2), SIGKILL) == 0);
  CHECK(run.finish() == 137);
  check_clean(run, shared_before);
}

TEST_CASE("several Accelerators in one process, one after another and at once") {
  AccelRun run(job(2, {"--several", "--steps", "2"}));
  CHECK(run.finish() == 0);
  INFO(run.all());
  CHECK(AccelRun::count_in(run.out(), "several 4") == 2);
  CHECK(AccelRun::count_in(run.out(), "step 1") == 2);
  AccelRun mpi(
      {"--allow-run-as-root", "--oversubscribe", "-n", "2", bin("job_torch"), "--several", "--steps", "1"},
      {}, "/usr/bin/mpirun");
  CHECK(mpi.finish() == 0);
  CHECK(AccelRun::count_in(mpi.out(), "several 4") == 2);
}

TEST_CASE("400 MB of data on 4 ranks take one copy of memory") {
  AccelRun run(job(4, {"--data_mb", "400", "--steps", "1"}));
  const auto code = run.finish();
  INFO(run.all());
  REQUIRE(code == 0);
  CHECK(AccelRun::count_in(run.out(), " of 4 pid ") == 4);
  // Every rank summed the same bytes: rows of 1024, so 0 + 1024 + 2048 + ... as floats.
  const size_t sums = run.out().find("data sum ");
  REQUIRE(sums != std::string::npos);
  const std::string sum = run.out().substr(sums, run.out().find('\n', sums) - sums);
  CHECK(AccelRun::count_in(run.out(), sum + "\n") == 4);
  const size_t at = run.out().find("data_kb ");
  REQUIRE(at != std::string::npos);
  long data_kb = 0;
  long pss_kb = 0;
  REQUIRE(std::sscanf(run.out().c_str() + at, "data_kb %ld pss_kb %ld", &data_kb, &pss_kb) == 2);
  std::printf("data %ld KiB, sum of Pss over 4 ranks %ld KiB: %.3f copies\n", data_kb, pss_kb,
              static_cast<double>(pss_kb) / static_cast<double>(data_kb));
  CHECK(data_kb == 400 * 1024);
  CHECK(static_cast<double>(pss_kb) < 1.05 * static_cast<double>(data_kb));
  CHECK(static_cast<double>(pss_kb) > 0.95 * static_cast<double>(data_kb));  // it was really read
}

TEST_CASE("a /dev/shm without room is an error with numbers on every rank, never a bus error") {
  // A mount namespace of its own with a small tmpfs; needs root, as CI has.
  REQUIRE(::geteuid() == 0);
  std::string command = "mount -t tmpfs -o size=16m tmpfs /dev/shm && exec";
  for (const std::string& word : job(2, {"--data_mb", "64"})) {
    if (word == "launch") command += concat(" ", shell_quote(bin("accel")));
    command += concat(" ", shell_quote(word));
  }
  AccelRun run({"-m", "/bin/sh", "-c", command}, {}, "/usr/bin/unshare");
  const auto code = run.finish();
  INFO(run.all());
  CHECK(code == 5);
  CHECK_THAT(run.err(), ContainsSubstring("/dev/shm needs 67108864 bytes (64.0 MiB), has 1") &&
                            ContainsSubstring(" bytes free") &&
                            ContainsSubstring("[rank 1] error: rank 1: the data set could not be built"));
  CHECK(run.nothing_left());
}
