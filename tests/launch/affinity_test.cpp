// enable_cpu_affinity with real processes, and threads of ranks.
#include "accelerate/core/cpu_topology.h"
#include "accelerate/core/machine.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

TEST_CASE("pinned ranks have CPUs of their own and as many threads", "[launch]") {
  const std::vector<int> all = accelerate::allowed_cpus();
  const int ranks = std::min<int>(4, static_cast<int>(all.size()));
  AccelRun run(launch_words(ranks, {"cpus", "env", "OMP_NUM_THREADS"}, {"--enable_cpu_affinity"}));
  CHECK(run.finish() == 0);
  INFO(run.all());
  std::vector<int> seen;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string mark = ranks == 1 ? "" : concat("[rank ", rank, "] ");
    std::vector<int> own;
    for (const std::string& line : lines_of(run.out())) {
      if (line.starts_with(mark + "cpus=")) own = accelerate::parse_cpu_list(line.substr(mark.size() + 5));
    }
    CHECK_FALSE(own.empty());
    CHECK_THAT(run.out(), ContainsSubstring(concat(mark, "OMP_NUM_THREADS=", own.size(), "\n")));
    seen.insert(seen.end(), own.begin(), own.end());
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == all);
  AccelRun dry(launch_words(ranks, {}, {"--enable_cpu_affinity", "--dry_run"}));
  CHECK(dry.finish() == 0);
  CHECK(AccelRun::count_in(dry.out(), " on CPUs ") == ranks);
}

TEST_CASE("more pinned ranks than CPUs are refused", "[launch]") {
  const auto cpus = static_cast<int>(accelerate::allowed_cpus().size());
  if (cpus >= 64) return;  // more processes than that are refused anyway
  AccelRun run(launch_words(cpus + 1, {"print", "started"}, {"--enable_cpu_affinity"}));
  CHECK(run.finish() == 2);
  CHECK(run.out().empty());
  CHECK_THAT(run.err(), ContainsSubstring(concat(cpus + 1, " processes on this machine, but it has ", cpus)));
}

TEST_CASE("threads are the cores shared out, the user's number is kept, and nothing is said of it",
          "[launch]") {
  const std::vector<std::string> script = {"env", "OMP_NUM_THREADS"};
  const int fair = std::max(1, accelerate::physical_cores() / 2);
  AccelRun run(launch_words(2, script));
  CHECK(run.finish() == 0);
  CHECK(AccelRun::count_in(run.out(), concat("OMP_NUM_THREADS=", fair, "\n")) == 2);
  CHECK(run.err().empty());
  AccelRun users(launch_words(2, script), {.environment = {{"OMP_NUM_THREADS", "3"}}});
  CHECK(users.finish() == 0);
  CHECK(AccelRun::count_in(users.out(), "OMP_NUM_THREADS=3\n") == 2);
  CHECK(users.err().empty());
  AccelRun flag(launch_words(2, script, {"--num_cpu_threads_per_process", "5"}),
                {.environment = {{"OMP_NUM_THREADS", "3"}}});
  CHECK(flag.finish() == 0);
  CHECK(AccelRun::count_in(flag.out(), "OMP_NUM_THREADS=5\n") == 2);
}
