// Which samples the ranks of whole jobs see: order, epochs, and going on after a kill.
#include <algorithm>
#include <map>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

struct Step {
  std::vector<int64_t> ids;
  std::string loss;
  std::string weights;
};

// Steps by (epoch, step, rank).
using Steps = std::map<std::tuple<int64_t, int64_t, int64_t>, Step>;

Steps steps_of(const std::string& text) {
  Steps out;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line.substr(std::min(line.rfind("rank "), line.size())));
    std::string rank_word, epoch_word, step_word, ids_word, ids, loss_word, weights_word;
    int64_t rank = 0, epoch = 0, number = 0;
    Step step;
    words >> rank_word >> rank >> epoch_word >> epoch >> step_word >> number >> ids_word >> ids >>
        loss_word >> step.loss >> weights_word >> step.weights;
    if (!words || epoch_word != "epoch" || weights_word != "weights") continue;
    for (const std::string& id : split(ids, ',')) step.ids.push_back(*parse_int(id));
    out[{epoch, number, rank}] = step;
  }
  return out;
}

std::multiset<int64_t> ids_of_epoch(const Steps& steps, int64_t epoch) {
  std::multiset<int64_t> out;
  for (const auto& [key, step] : steps) {
    if (std::get<0>(key) == epoch) out.insert(step.ids.begin(), step.ids.end());
  }
  return out;
}

std::vector<std::string> job(int processes, const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {"launch", "--cpu", "--num_processes", std::to_string(processes),
                                  bin("epochs_torch")};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::string run_job(int processes, const std::vector<std::string>& arguments) {
  AccelRun run(job(processes, arguments));
  const auto code = run.finish();
  INFO(run.all());
  REQUIRE(code == 0);
  CHECK(run.nothing_left());
  return run.all();
}

// The dropout masks that the ranks print.
std::vector<std::string> masks_of(const std::string& text) {
  std::vector<std::string> out;
  for (const std::string& line : lines_of(text)) {
    if (const size_t at = line.find(" mask "); at != std::string::npos) out.push_back(line.substr(at));
  }
  return out;
}

std::multiset<int64_t> all_ids(int64_t count) {
  std::multiset<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.insert(i);
  return out;
}

}  // namespace

TEST_CASE("a job killed in mid-epoch goes on with the samples and the losses it would have had") {
  const Steps whole = steps_of(run_job(2, {"--seed", "5"}));
  REQUIRE(whole.size() == 3 * 8 * 2);
  const TempDir folder;
  const std::string state = folder / "state";
  AccelRun killed(
      job(2, {"--seed", "5", "--save_epoch", "1", "--save_step", "4", "--save", state, "--step_ms", "40"}));
  REQUIRE(killed.wait_for("epoch 1 step 6", 2));
  for (const pid_t pid : killed.processes()) {
    if (pid != killed.pid()) ::kill(pid, SIGKILL);
  }
  CHECK(killed.finish() != 0);
  const Steps before = steps_of(killed.out());

  const std::string text = run_job(2, {"--seed", "5", "--load", state});
  CHECK(text.find("world size") == std::string::npos);
  const Steps after = steps_of(text);
  CHECK(after.size() == (4 + 8) * 2);
  Steps joined = after;
  for (const auto& [key, step] : before) {
    if (std::tuple(std::get<0>(key), std::get<1>(key)) <= std::tuple<int64_t, int64_t>(1, 4))
      joined[key] = step;
  }
  REQUIRE(joined.size() == whole.size());
  for (const auto& [key, step] : whole) {
    INFO("epoch " << std::get<0>(key) << " step " << std::get<1>(key) << " rank " << std::get<2>(key));
    REQUIRE(joined.count(key) == 1);
    CHECK(joined[key].ids == step.ids);
    CHECK(joined[key].loss == step.loss);  // bit for bit
    CHECK(joined[key].weights == step.weights);
  }

  // With another number of ranks: said, and the epoch's remaining samples once each.
  std::multiset<int64_t> seen_before;
  for (const auto& [key, step] : whole) {
    if (std::get<0>(key) == 1 && std::get<1>(key) <= 4) seen_before.insert(step.ids.begin(), step.ids.end());
  }
  REQUIRE(seen_before.size() == 32);
  for (const int ranks : {1, 4}) {
    const std::string other = run_job(ranks, {"--seed", "5", "--load", state});
    CHECK_THAT(other, ContainsSubstring(concat("world size 2 -> ", ranks)));
    std::multiset<int64_t> all = ids_of_epoch(steps_of(other), 1);
    all.insert(seen_before.begin(), seen_before.end());
    CHECK(all == all_ids(64));
    CHECK(ids_of_epoch(steps_of(other), 2) == all_ids(64));
  }
}

TEST_CASE("every epoch has an order of its own, the same in every run with one seed") {
  const std::string first_text = run_job(2, {"--seed", "7"});
  const Steps first = steps_of(first_text);
  const Steps again = steps_of(run_job(2, {"--seed", "7"}));
  const Steps other = steps_of(run_job(2, {"--seed", "8"}));
  const auto order = [](const Steps& steps, int64_t epoch) {
    std::vector<int64_t> out;
    for (const auto& [key, step] : steps) {
      if (std::get<0>(key) == epoch) out.insert(out.end(), step.ids.begin(), step.ids.end());
    }
    return out;
  };
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    CHECK(order(first, epoch) == order(again, epoch));
    CHECK(order(first, epoch) != order(other, epoch));
    CHECK(ids_of_epoch(first, epoch) == all_ids(64));  // disjoint and complete
  }
  CHECK(order(first, 0) != order(first, 1));
  CHECK(order(first, 1) != order(first, 2));
  // Noise differs between ranks, weights do not.
  const std::vector<std::string> masks = masks_of(first_text);
  REQUIRE(masks.size() == 2);
  CHECK(masks[0] != masks[1]);
  const std::vector<std::string> equal =
      masks_of(run_job(2, {"--seed", "7", "--epochs", "0", "--synchronize_rng"}));
  REQUIRE(equal.size() == 2);
  CHECK(equal[0] == equal[1]);
  for (const auto& [key, step] : first) {
    const auto& [epoch, number, rank] = key;
    CHECK(first.at({epoch, number, 0}).weights == step.weights);
  }
}

TEST_CASE("two jobs of one program at once do not see each other's data") {
  AccelRun one(job(2, {"--seed", "1", "--samples", "24", "--step_ms", "20"}));
  AccelRun two(job(2, {"--seed", "2", "--samples", "40", "--step_ms", "20"}));
  CHECK(one.finish() == 0);
  CHECK(two.finish() == 0);
  CHECK(ids_of_epoch(steps_of(one.out()), 2) == all_ids(24));
  CHECK(ids_of_epoch(steps_of(two.out()), 2) == all_ids(40));
}
