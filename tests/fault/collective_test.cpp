// Ranks that are killed or stopped in the middle of collectives, with nobody but the other ranks to notice.
#include <csignal>

#include "accelerate/core/error.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

using Clock = std::chrono::steady_clock;

// Ranks of one job without a launcher.
struct Ranks {
  Ranks(int size, const std::string& backend, int timeout_ms, int bytes, int steps = 1 << 30) {
    static int jobs = 0;
    const std::string job = concat("collective-", ::getpid(), "-", jobs++);
    for (int rank = 0; rank < size; ++rank) {
      RunOptions options;
      options.environment = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(size)},
                             {"TORCHELASTIC_RUN_ID", job},
                             {"OMP_NUM_THREADS", "1"}};
      runs.push_back(
          std::make_unique<AccelRun>(std::vector<std::string>{backend, std::to_string(timeout_ms),
                                                              std::to_string(bytes), std::to_string(steps)},
                                     options, bin("collective_torch")));
    }
  }

  void wait_until_running() {
    for (size_t rank = 0; rank < runs.size(); ++rank) {
      INFO(runs[rank]->all());
      REQUIRE(runs[rank]->wait_for(concat("rank ", rank, " runs")));
    }
  }

  std::vector<std::unique_ptr<AccelRun>> runs;
};

}  // namespace

TEST_CASE("a rank that is killed in a collective over shared memory is named long before the timeout") {
  const auto before = shared_memory_entries();
  for (const int size : {2, 4}) {
    for (const int bytes : {4096, 3 << 20}) {
      Ranks ranks(size, "shm", 60000, bytes);
      ranks.wait_until_running();
      // Every rank has mapped the segment, which has no name any more.
      CHECK(shared_memory_entries() == before);
      const int victim = size - 1;
      ranks.runs[static_cast<size_t>(victim)]->signal(SIGKILL);
      const auto killed = Clock::now();
      for (int rank = 0; rank < victim; ++rank) {
        AccelRun& run = *ranks.runs[static_cast<size_t>(rank)];
        CHECK(run.finish() == static_cast<int>(ExitCode::kCommError));
        INFO(run.all());
        // The first to notice names the dead; the others may hear of it from the first.
        CHECK(run.all().find("failed on shm") != std::string::npos);
        if (size == 2)
          CHECK(run.all().find(concat("rank ", victim, " is gone: its process")) != std::string::npos);
      }
      CHECK(Clock::now() - killed < std::chrono::seconds(20));
      CHECK(shared_memory_entries() == before);
      std::printf("%d ranks took part, one killed\n", size);
    }
  }
}

TEST_CASE("a rank that is stopped is named when the timeout passes") {
  Ranks ranks(3, "shm", 1500, 4096);
  ranks.wait_until_running();
  ranks.runs[1]->signal(SIGSTOP);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(ranks.runs[rank]->finish() == static_cast<int>(ExitCode::kCommError));
    INFO(ranks.runs[rank]->all());
    CHECK(ranks.runs[rank]->all().find("failed on shm") != std::string::npos);
  }
  const std::string all = ranks.runs[0]->all() + ranks.runs[2]->all();
  INFO(all);
  CHECK(all.find("rank 1 did not come (not within 1.5 s)") != std::string::npos);
  ranks.runs[1]->signal(SIGKILL);
  ranks.runs[1]->finish();
}

TEST_CASE("auto is shm for ranks of one machine, and all end well") {
  Ranks ranks(3, "auto", 30000, 100000, 50);
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(ranks.runs[rank]->finish() == 0);
    INFO(ranks.runs[rank]->all());
    CHECK(ranks.runs[rank]->all().find(concat("rank ", rank, " over shm")) != std::string::npos);
  }
}
