// `accel test`: a verdict for any number of ranks.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;

namespace {

constexpr const char* kSuccess = "Test is a success! You are ready for your distributed training!";
constexpr std::chrono::seconds kPatience{120};

RunOptions without_devices(std::vector<std::pair<std::string, std::string>> more = {}) {
  more.emplace_back("CUDA_VISIBLE_DEVICES", "-1");
  return {.environment = std::move(more)};
}

}  // namespace

TEST_CASE("accel test succeeds for any number of ranks") {
  for (const char* ranks : {"", "1", "3", "5"}) {
    std::vector<std::string> words = {"test"};
    if (*ranks != 0) words.insert(words.end(), {"--num_processes", ranks});
    AccelRun run(words, without_devices());
    CHECK(run.finish(kPatience) == 0);
    INFO(run.all());
    CHECK(last_lines(run.out(), 1) == kSuccess);
    CHECK_THAT(run.out(), ContainsSubstring(*ranks == 0 ? "2 ranks" : std::string(ranks) + " rank"));
    for (const char* check : {"start: ok", "collectives: ok", "sampling: ok", "training: ok", "saving: ok"}) {
      CHECK(AccelRun::count_in(run.out(), check) == 1);
    }
    CHECK(run.nothing_left());
  }
}

TEST_CASE("accel test takes the configuration") {
  const TempDir dir;
  write_file(dir / "c.yaml", "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_processes: 3\n");
  AccelRun run({"test", "--config_file", dir / "c.yaml"}, without_devices());
  CHECK(run.finish(kPatience) == 0);
  CHECK_THAT(run.out(), ContainsSubstring("3 ranks"));
  AccelRun missing({"test", "--config_file", dir / "none.yaml"}, without_devices());
  CHECK(missing.finish() == 2);
  CHECK_THAT(missing.err(), ContainsSubstring("none.yaml") && ContainsSubstring("Test failed"));
}

TEST_CASE("accel test says which check failed on which rank") {
  for (const char* check : {"start", "collectives", "sampling", "training", "saving"}) {
    AccelRun run({"test", "--num_processes", "3"},
                 without_devices({{"SELF_TEST_BREAK", accelerate::concat(check, ":1")}}));
    CHECK(run.finish(kPatience) == 1);
    INFO(run.all());
    CHECK_THAT(run.err(), ContainsSubstring(accelerate::concat("rank 1: check '", check, "' failed")));
    CHECK_THAT(last_lines(run.err(), 1), ContainsSubstring("Test failed"));
    CHECK(AccelRun::count_in(run.out(), kSuccess) == 0);
    CHECK(run.nothing_left());
  }
}
