// Trackers and progress through the Accelerator. What trackers write is tested in tests/trackers.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launch_test_support.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::require;
using test::require_contains;

namespace {

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& item : std::filesystem::directory_iterator(folder)) out.push_back(item.path().string());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("the main process logs, also tensors, and the run knows what it was launched with") {
  const testing::TempDir dir;
  AcceleratorOptions options;
  options.log_with = {"jsonl"};
  options.project_config = {.project_dir = dir.path()};
  options.gradient_accumulation_steps = 3;
  test::run_ranks(
      2,
      [&](Accelerator& accelerator) {
        accelerator.init_trackers("mnist", {{"lr", 0.1}});
        for (int64_t step = 0; step < 4; ++step) {
          accelerator.log({{"loss", torch::tensor(0.5)}, {"rank", accelerator.process_index()}}, step);
        }
        accelerator.get_tracker("jsonl").log({{"extra", 1}}, 9);
        ProgressBar bar = accelerator.progress_bar(2, "epoch 1");
        bar.advance(2);
        require(bar.done() == 2, "bar");
        require_contains(error_of<ConfigError>([&] { accelerator.get_tracker("csv"); }), "jsonl");
        accelerator.end_training();
        accelerator.end_training();
      },
      options);
  const std::vector<std::string> files = files_in(dir / "mnist");
  REQUIRE(files.size() == 2);
  const auto lines = testing::lines_of(testing::read_file(files[0]));
  REQUIRE(lines.size() == 5);
  const auto first = nlohmann::json::parse(lines[0]);
  CHECK(first["loss"] == 0.5);
  CHECK(first["rank"] == 0);
  const auto record = nlohmann::json::parse(testing::read_file(files[1]));
  CHECK(record["world_size"] == 2);
  bool found = false;
  for (const auto& setting : record["settings"]) {
    if (setting["name"] != "gradient_accumulation_steps") continue;
    found = true;
    CHECK(setting["value"] == "3");
    CHECK_THAT(setting["origin"].get<std::string>(), ContainsSubstring("code"));
  }
  CHECK(found);
}

TEST_CASE("an unknown tracker is an error on every rank, when the Accelerator is made") {
  AcceleratorOptions options;
  options.log_with = {"tensorbord"};
  require_contains(error_of<ConfigError>([&] {
                     test::run_ranks(
                         2, [](Accelerator&) {}, options);
                   }),
                   "Did you mean 'tensorboard'?");
}
