// Ranks that are killed or stopped in the middle of collectives, with nobody but the other ranks to notice.
#include <csignal>
#include <thread>

#include "accelerate/core/error.h"
#include "launch/machines_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

using Clock = std::chrono::steady_clock;

// Ranks of one job without a launcher.
struct Ranks {
  /// `on_machine`: ranks on each of the machines that are made up; 0: all on one.
  Ranks(int size, const std::string& backend, int timeout_ms, int bytes, int steps = 1 << 30,
        int on_machine = 0) {
    static int jobs = 0;
    const std::string job = concat("collective-", ::getpid(), "-", jobs++);
    const int port = free_port();
    for (int rank = 0; rank < size; ++rank) {
      RunOptions options;
      options.environment = {{"RANK", std::to_string(rank)},
                             {"WORLD_SIZE", std::to_string(size)},
                             {"TORCHELASTIC_RUN_ID", job},
                             {"OMP_NUM_THREADS", "1"}};
      if (on_machine > 0) {
        options.environment.emplace_back("LOCAL_WORLD_SIZE", std::to_string(on_machine));
        options.environment.emplace_back("MASTER_PORT", std::to_string(port));
      }
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

TEST_CASE(
    "a rank that is stopped is told from the others when the timeout passes, also the one that serves the "
    "store") {
  for (const std::string backend : {"shm", "gloo"}) {
    for (const size_t victim : {size_t{1}, size_t{0}}) {
      INFO(backend << ", rank " << victim << " stopped");
      Ranks ranks(3, backend, 1500, 4096);
      ranks.wait_until_running();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // each has told of itself
      ranks.runs[victim]->signal(SIGSTOP);
      const auto stopped = Clock::now();
      std::string all;
      for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
        if (rank == victim) continue;
        CHECK(ranks.runs[rank]->finish() == static_cast<int>(ExitCode::kCommError));
        INFO(ranks.runs[rank]->all());
        CHECK(ranks.runs[rank]->all().find(concat(" failed on ", backend)) != std::string::npos);
        all += ranks.runs[rank]->all();
      }
      // The timeout, and a moment for a store that does not answer; the rest is a busy machine's.
      CHECK(Clock::now() - stopped < std::chrono::seconds(15));
      INFO(all);
      if (victim == 0) {
        CHECK(all.find("rank 0, which holds the job's store, is gone or stopped") != std::string::npos);
      } else {
        CHECK(all.find(
                  "rank 1 gives no sign of life (killed, stopped, or its machine is gone); the last that it "
                  "did was ") != std::string::npos);
      }
      if (backend == "shm") {
        const bool named =
            all.find(concat("rank ", victim, " did not come (not within 1.5 s)")) != std::string::npos;
        CHECK((named || all.find("nothing came in time") != std::string::npos));  // in a message, in the ring
      }
      ranks.runs[victim]->signal(SIGKILL);
      ranks.runs[victim]->finish();
    }
  }
}

TEST_CASE("a rank of several machines that is killed ends the others, and leaves nothing") {
  const auto before = shared_memory_entries();
  Ranks ranks(4, "auto", 5000, 1 << 20, 1 << 30, /*on_machine=*/2);
  ranks.wait_until_running();
  CHECK(shared_memory_entries() == before);
  ranks.runs[3]->signal(SIGKILL);
  const auto killed = Clock::now();
  for (const size_t rank : {size_t{0}, size_t{1}, size_t{2}}) {
    CHECK(ranks.runs[rank]->finish() == static_cast<int>(ExitCode::kCommError));
    INFO(ranks.runs[rank]->all());
    CHECK(ranks.runs[rank]->all().find(concat("rank ", rank, " over hierarchical")) != std::string::npos);
    CHECK(ranks.runs[rank]->all().find("failed on hierarchical") != std::string::npos);
  }
  CHECK(Clock::now() - killed < std::chrono::seconds(20));
  CHECK(shared_memory_entries() == before);
}

TEST_CASE("a /dev/shm without room: auto takes Gloo and says so, shm is an error") {
  // A mount namespace of its own with a small tmpfs; needs root, as CI has.
  REQUIRE(::geteuid() == 0);
  for (const std::string backend : {"auto", "shm"}) {
    const std::string command = concat("mount -t tmpfs -o size=256k tmpfs /dev/shm && exec ",
                                       shell_quote(bin("accel")), " launch --cpu --num_processes 2 ",
                                       shell_quote(bin("job_torch")), " --steps 3 --backend ", backend);
    AccelRun run({"-m", "/bin/sh", "-c", command}, {}, "/usr/bin/unshare");
    const auto code = run.finish();
    INFO(run.all());
    CHECK_THAT(run.err(), ContainsSubstring("the ranks can't share memory"));
    CHECK_THAT(run.err(), ContainsSubstring("rank 0: "));
    if (backend == "auto") {
      CHECK(code == 0);
      CHECK(AccelRun::count_in(run.out(), "step 2") == 2);
      CHECK_THAT(run.err(), ContainsSubstring("so that they talk over gloo alone"));
    } else {
      CHECK(code != 0);
      CHECK_THAT(run.err(), ContainsSubstring("--shm-size"));
    }
    CHECK(run.nothing_left());
  }
}

TEST_CASE("auto is shm for ranks of one machine, and all end well") {
  Ranks ranks(3, "auto", 30000, 100000, 50);
  for (size_t rank = 0; rank < 3; ++rank) {
    CHECK(ranks.runs[rank]->finish() == 0);
    INFO(ranks.runs[rank]->all());
    CHECK(ranks.runs[rank]->all().find(concat("rank ", rank, " over shm")) != std::string::npos);
  }
}
