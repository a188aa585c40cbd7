// Jobs that are killed, stopped and started again end with the weights of one that never was.
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "accelerate/checkpoint/store/listing.h"
#include "launch_test_support.h"
#include "support/temporary_folder.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;
using test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Words job(const Words& flags, const Words& words) {
  Words out = {"launch", "--cpu", "--num_processes", "2"};
  out.insert(out.end(), flags.begin(), flags.end());
  out.push_back(bin("resume_torch"));
  out.insert(out.end(), words.begin(), words.end());
  return out;
}

std::string final_line(const std::string& text) {
  for (const std::string& line : lines_of(text)) {
    const size_t at = line.find("final ");
    if (at != std::string::npos) return line.substr(at);
  }
  return "";
}

std::string undisturbed(int64_t epochs) {
  const TemporaryFolder folder;
  AccelRun run(job({}, {folder.path(), std::to_string(epochs)}));
  CHECK(run.finish(std::chrono::seconds(120)).value_or(-1) == 0);
  INFO(run.all());
  CHECK(AccelRun::count_in(run.all(), "begins") == 1);
  return final_line(run.all());
}

// Complete checkpoints, of which one is the newest, and no more folders than the limit and one that is being
// written, replaced or removed.
void check_folder(const std::string& folder, size_t limit) {
  const std::string checkpoints = folder + "/checkpoints";
  if (!std::filesystem::exists(checkpoints)) return;
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) folders += entry.is_directory();
  CHECK(folders <= limit + 2);
  const auto listing = list_checkpoints(system_files(), checkpoints, VerifyLevel::kFull);
  for (const auto& skipped : listing.skipped) {
    INFO(skipped.name << ": " << skipped.reason);
    CHECK_FALSE(skipped.is_checkpoint);
  }
}

}  // namespace

TEST_CASE("a job that is killed fifty times ends with the weights of one that never was") {
  const int64_t epochs = 40;
  const std::string expected = undisturbed(epochs);
  REQUIRE_FALSE(expected.empty());
  std::mt19937 random(20261201);
  int kills = 0;
  for (const Words& way : {Words{}, Words{"async"}, Words{"async", "sharded"}}) {
    const TemporaryFolder folder;
    std::string final;
    int kills_here = 0;
    for (int start = 0; final.empty() && start < 200; ++start) {
      INFO("way " << way.size() << " start " << start << " kills " << kills);
      Words words = {folder.path(), std::to_string(epochs), "slow", "2"};
      words.insert(words.end(), way.begin(), way.end());
      // Now and then the launcher starts the ranks again by itself.
      const bool restarts = start % 4 == 3;
      AccelRun run(job(restarts ? Words{"--max_restarts", "1"} : Words{}, words));
      REQUIRE(run.wait_for("start: "));
      // Again and again while anybody is left: ranks that end, ranks that start anew, the launcher, its
      // guard.
      while (kills_here < 17) {
        std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution(0, 250)(random)));
        const std::vector<pid_t> victims = run.processes();
        if (victims.empty()) break;
        ::kill(victims[std::uniform_int_distribution<size_t>(0, victims.size() - 1)(random)], SIGKILL);
        ++kills;
        ++kills_here;
      }
      const auto code = run.finish(std::chrono::seconds(120));
      INFO(run.all());
      REQUIRE(code.has_value());
      CHECK(run.nothing_left());
      check_folder(folder.path(), 2);
      final = final_line(run.all());
      if (*code == 0) CHECK_FALSE(final.empty());
    }
    CHECK(final == expected);
  }
  CHECK(kills >= 50);
}

TEST_CASE("a rank that is asked to end saves first, and the launcher starts the job again from there") {
  const int64_t epochs = 8;
  const std::string expected = undisturbed(epochs);
  const TemporaryFolder folder;
  AccelRun run(job({"--max_restarts", "1"}, {folder.path(), std::to_string(epochs), "slow", "5"}));
  REQUIRE(run.wait_for("checkpoint_3 "));  // from the first step on a rank listens
  // One rank only: all stop at the same step.
  std::vector<pid_t> ranks;
  for (const pid_t pid : run.processes()) {
    std::string name = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe");
    if (name.ends_with("resume_torch")) ranks.push_back(pid);
  }
  REQUIRE(ranks.size() >= 2);
  ::kill(ranks.back(), SIGTERM);
  CHECK(run.finish(std::chrono::seconds(120)).value_or(-1) == 0);
  INFO(run.all());
  CHECK(run.all().find("exited with code 75 (it was asked to end, and its state is saved)") !=
        std::string::npos);
  CHECK(run.all().find("ended on request (SIGTERM); the state is in ") != std::string::npos);
  CHECK(AccelRun::count_in(run.all(), "resumed ") == 1);
  CHECK(final_line(run.all()) == expected);
}

TEST_CASE("a launcher that is asked to end lets the ranks save, and says so by its exit code") {
  const int64_t epochs = 8;
  const std::string expected = undisturbed(epochs);
  const TemporaryFolder folder;
  {
    AccelRun run(job({"--max_restarts", "3", "--grace_period", "60"},
                     {folder.path(), std::to_string(epochs), "slow", "5"}));
    REQUIRE(run.wait_for("checkpoint_3 "));
    run.signal(SIGTERM);
    CHECK(run.finish(std::chrono::seconds(60)).value_or(-1) == 75);
    INFO(run.all());
    CHECK(run.all().find("the state is in ") != std::string::npos);
    CHECK(AccelRun::count_in(run.all(), "resumed ") == 0);
    CHECK(run.nothing_left());
  }
  AccelRun again(job({}, {folder.path(), std::to_string(epochs)}));
  CHECK(again.finish(std::chrono::seconds(120)).value_or(-1) == 0);
  INFO(again.all());
  CHECK(AccelRun::count_in(again.all(), "resumed ") == 1);
  CHECK(final_line(again.all()) == expected);
}

TEST_CASE("a full disk ends the job with a code of its own and leaves the checkpoints that are there") {
  if (::geteuid() != 0) {
    WARN("not looked at: making a small file system takes root");
    return;
  }
  const TemporaryFolder folder;
  const std::string small = folder / "small";
  std::filesystem::create_directory(small);
  REQUIRE(::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=120k") == 0);
  {
    AccelRun run(job({}, {small, "8", "keep", "100"}));
    CHECK(run.finish(std::chrono::seconds(60)).value_or(-1) == 6);
    INFO(run.all());
    CHECK(run.all().find("No space left on device") != std::string::npos);
    CHECK(run.all().find(small + "/checkpoints/checkpoint_") != std::string::npos);
    const auto listing = list_checkpoints(system_files(), small + "/checkpoints", VerifyLevel::kFull);
    CHECK_FALSE(listing.checkpoints.empty());
    CHECK(listing.skipped.empty());
  }
  CHECK(::umount(small.c_str()) == 0);
}

TEST_CASE("a folder that can't be written to is named") {
  const TemporaryFolder folder;
  std::ofstream(folder / "checkpoints") << "a file in its place";
  AccelRun run(job({}, {folder.path(), "1"}));
  const auto code = run.finish(std::chrono::seconds(60));
  INFO(run.all());
  CHECK(code.value_or(-1) == 6);
  CHECK(run.all().find(folder / "checkpoints") != std::string::npos);
}
