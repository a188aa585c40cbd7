// The back end mpi: real processes, started by mpirun.
#include <csignal>

#include "accelerate/core/error.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr int kMultiple = 3;  // MPI_THREAD_MULTIPLE of Open MPI
constexpr int kSingle = 0;

/// `mpirun -n RANKS mpi_torch WORDS...`
class MpiRun : public AccelRun {
 public:
  MpiRun(int ranks, const Words& words, const Words& flags = {}, RunOptions options = {})
      : AccelRun(arguments(ranks, words, flags), with_threads(std::move(options)), "/usr/bin/env"),
        ranks_(ranks),
        what_(words.front()) {}

  /// Ends well, and with it every rank, which all have taken part.
  void check_good() {
    CHECK(finish(std::chrono::seconds(240)) == 0);
    INFO(all());
    CHECK(count_in(out(), concat("took part: ", what_, "\n")) == ranks_);
    // c10d may warn about a name that it can't look up.
    CHECK(err().find("error") == std::string::npos);
    CHECK(nothing_left());
  }

 private:
  static Words arguments(int ranks, const Words& words, const Words& flags) {
    Words out = {"mpirun",    "-n",   std::to_string(ranks), "--allow-run-as-root", "--oversubscribe",
                 "--bind-to", "none", "--tag-output"};
    out.insert(out.end(), flags.begin(), flags.end());
    out.push_back(bin("mpi_torch"));
    out.insert(out.end(), words.begin(), words.end());
    return out;
  }
  static RunOptions with_threads(RunOptions options) {
    options.environment.emplace_back("OMP_NUM_THREADS", "1");
    return options;
  }

  int ranks_;
  std::string what_;
};

// What the others say of rank 1, which did not come.
void check_named(const std::string& text, const std::string& how) {
  CHECK(text.find("failed on mpi: ") != std::string::npos);
  CHECK(text.find(concat("rank 1 ", how)) != std::string::npos);
}

std::vector<double> numbers_after(const std::string& text, const std::string& mark) {
  std::vector<double> out;
  std::istringstream in(text.substr(std::min(text.size(), text.find(mark))));
  std::string line;
  std::getline(in, line);
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (end != word.c_str() && *end == '\0') out.push_back(value);
  }
  return out;
}

}  // namespace

TEST_CASE("mpi gives what Gloo gives: every operation and dtype, odd sizes, any layout, 1 to 4 ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    MpiRun(ranks, {"fuzz", "40", std::to_string(1 << 30)}).check_good();
    std::printf("mpi against gloo: %d ranks took part\n", ranks);
  }
}

TEST_CASE("operations longer than one call of MPI are split") {
  // As those of more than 2^30 elements are, with a smaller limit.
  for (const int ranks : {2, 3}) MpiRun(ranks, {"fuzz", "15", "100"}).check_good();
  MpiRun(2, {"messages", "1000"}).check_good();
}

TEST_CASE("complex and sparse sums, NaNs, overflows, uneven and coalesced parts, refusals over mpi") {
  for (const int ranks : {1, 2, 3}) MpiRun(ranks, {"special"}).check_good();
}

TEST_CASE("operations of mpi overlap, and their futures end") {
  for (const int ranks : {2, 3}) MpiRun(ranks, {"overlap"}).check_good();
}

TEST_CASE("messages of mpi: both ways at once, out of order of tags, from any rank, late, of another size") {
  for (const int ranks : {2, 4}) MpiRun(ranks, {"messages", std::to_string(1 << 30)}).check_good();
  MpiRun(2, {"wrong_messages"}).check_good();
}

TEST_CASE("several groups of mpi at once, sub-groups among them, and by two threads") {
  MpiRun(4, {"groups"}).check_good();
}

TEST_CASE("training over mpi ends with the weights of gloo") {
  for (const int ranks : {1, 2, 3}) {
    std::vector<std::string> outputs;
    for (const char* const backend : {"gloo", "mpi"}) {
      MpiRun run(ranks, {"train", backend});
      run.check_good();
      outputs.push_back(run.out());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string mark = concat("rank ", rank, " weights");
      const auto gloo = numbers_after(outputs[0], mark);
      const auto mpi = numbers_after(outputs[1], mark);
      REQUIRE(gloo.size() == 15);  // rank, two of each parameter, loss, ids
      REQUIRE(mpi.size() == gloo.size());
      // A sum of two is the same in any order.
      for (size_t i = 0; i < gloo.size(); ++i)
        CHECK(mpi[i] == Approx(gloo[i]).epsilon(ranks > 2 ? 1e-5 : 1e-15).margin(ranks > 2 ? 1e-5 : 0));
    }
    std::printf("training over mpi and gloo: %d ranks took part\n", ranks);
  }
}

TEST_CASE("accel launch starts ranks of mpi through mpirun") {
  TempDir dir;
  write_file(dir / "hosts", "localhost slots=2\n");
  AccelRun run({"launch", "--cpu", "--num_processes", "2", "--mpirun_hostfile", dir / "hosts",
                bin("mpi_torch"), "train", "mpi"});
  CHECK(run.finish() == 0);
  INFO(run.all());
  CHECK(AccelRun::count_in(run.out(), "took part: train") == 2);
  CHECK(run.nothing_left());
}

TEST_CASE("MPI is started once for several Accelerators, and left to a program that starts it itself") {
  MpiRun(2, {"several"}).check_good();
  MpiRun(2, {"own_init", std::to_string(kMultiple)}).check_good();
  MpiRun run(2, {"own_init", std::to_string(kSingle)});
  CHECK(run.finish() == static_cast<int>(ExitCode::kConfigError));
  INFO(run.all());
  CHECK(run.err().find("expected MPI_THREAD_MULTIPLE") != std::string::npos);
}

TEST_CASE("a program that mpirun did not start is told how to start for mpi") {
  // Each by itself, and each in an mpirun of its own.
  for (const bool alone : {true, false}) {
    std::vector<std::unique_ptr<AccelRun>> runs;
    for (const char* const rank : {"0", "1"}) {
      const RunOptions options{.environment = {{"RANK", rank},
                                               {"WORLD_SIZE", "2"},
                                               {"TORCHELASTIC_RUN_ID", concat("start-", ::getpid(), alone)}}};
      if (alone) {
        runs.push_back(std::make_unique<AccelRun>(Words{"explicit"}, options, bin("mpi_torch")));
      } else {
        runs.push_back(std::make_unique<MpiRun>(1, Words{"explicit"}, Words{}, options));
      }
    }
    for (const auto& run : runs) {
      CHECK(run->finish() == static_cast<int>(ExitCode::kConfigError));
      INFO(run->all());
      const char* const said = alone ? "expected processes that mpirun has started" : "got rank 0 of 1";
      CHECK(run->err().find(said) != std::string::npos);
      CHECK(run->err().find("mpirun -n 2 ./train, or accel launch") != std::string::npos);
    }
  }
  AccelRun launched({"launch", "--cpu", "--num_processes", "2", bin("mpi_torch"), "loop", "20000", "10", "10",
                     "-1", "none"});
  CHECK(launched.finish() == static_cast<int>(ExitCode::kConfigError));
  INFO(launched.all());
  CHECK(launched.all().find("expected processes that mpirun has started") != std::string::npos);
}

TEST_CASE("a rank of mpi that is late or stopped is named when the timeout passes") {
  for (const char* const deed : {"sleep", "stop"}) {
    for (const char* const numel : {"10", "1000000"}) {
      MpiRun run(3, {"loop", "1500", numel, "1000000", "1", deed});
      REQUIRE(run.wait_for(" runs pid ", 3));
      const auto began = Clock::now();
      CHECK(run.finish() == static_cast<int>(ExitCode::kCommError));
      INFO(run.all());
      CHECK(Clock::now() - began < std::chrono::seconds(15));
      CHECK(run.all().find("all_reduce #6 of Float") != std::string::npos);
      check_named(run.all(), deed == std::string("sleep") ? "has not come" : "gives no sign of life");
      CHECK(run.all().find("did not end within 1.5 s") != std::string::npos);
      CHECK(run.nothing_left());
    }
  }
}

TEST_CASE("training over mpi ends when a rank is late in a backward pass") {
  MpiRun run(2, {"train", "mpi", "1"});
  CHECK(run.finish() == static_cast<int>(ExitCode::kCommError));
  INFO(run.all());
  CHECK(run.since_start() < std::chrono::seconds(25));
  check_named(run.all(), "has not come");
  CHECK(run.all().find("did not end within 1.5 s") != std::string::npos);
}

TEST_CASE("a rank of mpi that is killed, that throws or that leaves ends the job") {
  struct Deed {
    const char* name;
    const char* timeout_ms;
    int code;
    const char* said;
  };
  // With a long timeout it is mpirun that tells the others, by ending them.
  for (const Deed& deed : {Deed{"kill", "600000", 128 + SIGKILL, ""}, Deed{"throw", "600000", 1, "boom 42"},
                           Deed{"leave", "1500", 4, "rank 1 left after 5 collectives"}}) {
    INFO(deed.name);
    MpiRun run(3, {"loop", deed.timeout_ms, "1000", "1000000", "1", deed.name});
    REQUIRE(run.wait_for(" runs pid ", 3));
    const auto began = Clock::now();
    CHECK(run.finish().value_or(-1) == deed.code);
    INFO(run.all());
    CHECK(Clock::now() - began < std::chrono::seconds(20));
    CHECK(run.all().find(deed.said) != std::string::npos);
    CHECK(run.nothing_left());
  }
}

TEST_CASE("a job of mpi fails when a rank ends and the others do not follow") {
  MpiRun run(2, {"idle", "2000", "1", "60"});
  CHECK(run.finish().value_or(-1) == static_cast<int>(ExitCode::kCommError));
  INFO(run.all());
  CHECK(run.since_start() < std::chrono::seconds(25));
  CHECK(run.all().find("this rank has ended, and not all other ranks have within 8 s") != std::string::npos);
  CHECK(run.nothing_left());
}

TEST_CASE("where mpirun lets the others live, they end by their timeout when a rank of mpi is killed") {
  MpiRun run(3, {"loop", "1500", "1000", "1000000", "1", "kill"}, {"--enable-recovery"});
  REQUIRE(run.wait_for(" runs pid ", 3));
  const auto began = Clock::now();
  CHECK(run.finish().has_value());  // mpirun's own code is 0 then
  INFO(run.all());
  CHECK(Clock::now() - began < std::chrono::seconds(20));
  CHECK(AccelRun::count_in(run.all(), " failed on mpi: ") == 2);
  check_named(run.all(), "gives no sign of life");
  CHECK(run.nothing_left());
}
