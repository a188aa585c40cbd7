// Samplers and batch samplers; the orders of torch's are in tests/parity/torch_samplers.json, written by
// Python.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/data/sampler.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using nlohmann::json;
using test::error_of;
using test::ids;
using test::require;
using test::require_contains;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

const json& golden() {
  static const json data = json::parse(
      std::ifstream(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/torch_samplers.json"));
  return data;
}

// Given batches, the same in every epoch.
class FixedBatches final : public BatchSampler {
 public:
  explicit FixedBatches(Batches batches) : batches_(std::move(batches)) {}
  std::vector<std::vector<int64_t>> batches(int64_t) const override { return batches_; }

 private:
  Batches batches_;
};

SharedMemoryDataset numbers(Accelerator& accelerator, int64_t n) {
  return SharedMemoryDataset::create(accelerator, [n] { return torch::arange(n); });
}

}  // namespace

TEST_CASE("weighted and subset samplers draw as torch's in Python, and anew each epoch") {
  for (const json& entry : golden().at("weighted")) {
    const WeightedRandomSampler sampler(entry.at("weights"), entry.at("draws"),
                                        entry.at("seed").get<uint64_t>(), entry.at("replacement"));
    INFO(entry.dump());
    CHECK(sampler.order(0) == entry.at("order").get<std::vector<int64_t>>());
    CHECK(sampler.order(0) == sampler.order(0));
    if (entry.at("draws") > 10) CHECK(sampler.order(1) != sampler.order(0));
  }
  for (const json& entry : golden().at("subset")) {
    const SubsetRandomSampler sampler(entry.at("indices"), entry.at("seed").get<uint64_t>());
    INFO(entry.dump());
    CHECK(sampler.order(0) == entry.at("order").get<std::vector<int64_t>>());
  }
  CHECK(golden().at("weighted").size() == 9);
  CHECK(golden().at("subset").size() == 6);
  CHECK(SubsetSampler({4, 2}).order(3) == std::vector<int64_t>{4, 2});
}

TEST_CASE("weights that can't be are errors that name the sample") {
  CHECK_THAT(error_of([] { WeightedRandomSampler({1, -2}, 1, 0); }), ContainsSubstring("weight of sample 1"));
  CHECK_THAT(error_of([] { WeightedRandomSampler({1, NAN}, 1, 0); }), ContainsSubstring("finite"));
  CHECK_THAT(error_of([] { WeightedRandomSampler({0, 0}, 1, 0); }), ContainsSubstring("0 weights above 0"));
  CHECK_THAT(error_of([] {
               WeightedRandomSampler({1, 0}, 2, 0, false);
             }),
             ContainsSubstring("as many weights above 0 as draws"));
}

TEST_CASE("batches by length hold similar lengths, all samples once, and a new order each epoch") {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 1000; ++i) lengths.push_back((i * 37) % 101 + 1);
  const auto padding = [&](const Batches& batches) {
    int64_t real = 0, padded = 0;
    for (const auto& batch : batches) {
      int64_t longest = 0;
      for (const int64_t i : batch) {
        real += lengths[static_cast<size_t>(i)];
        longest = std::max(longest, lengths[static_cast<size_t>(i)]);
      }
      padded += longest * static_cast<int64_t>(batch.size());
    }
    return static_cast<double>(padded) / static_cast<double>(real);
  };
  const BucketByLengthSampler sampler(lengths, {.batch_size = 16, .shuffle = true, .seed = 1});
  const Batches first = sampler.batches(0);
  std::multiset<int64_t> seen;
  for (const auto& batch : first) seen.insert(batch.begin(), batch.end());
  CHECK(seen.size() == 1000);
  CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 1000);
  CHECK(first == sampler.batches(0));
  CHECK(first != sampler.batches(1));
  CHECK(padding(first) < 1.05);  // shuffled batches of 16 would be about 1.9
  const Batches limited = BucketByLengthSampler(lengths, {.batch_size = 64, .max_elements = 400}).batches(0);
  for (const auto& batch : limited) {
    int64_t longest = 0;
    for (const int64_t i : batch) longest = std::max(longest, lengths[static_cast<size_t>(i)]);
    CHECK(longest * static_cast<int64_t>(batch.size()) <= 400);
  }
  const Batches full = BucketByLengthSampler(lengths, {.batch_size = 16, .drop_last = true}).batches(0);
  CHECK(full.size() == 62);
  CHECK_THAT(error_of([] { BucketByLengthSampler({1}, {.batch_size = 0}); }), ContainsSubstring("1 or more"));
}

TEST_CASE("a batch sampler's batches go to the ranks in turn, and metrics see every sample once") {
  const Batches batches = {{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}, {10}};
  test::run_ranks(2, [&](Accelerator& accelerator) {
    auto loader = accelerator.prepare(
        DataLoader(numbers(accelerator, 11), {.batch_sampler = std::make_shared<FixedBatches>(batches)}));
    require(loader.size() == 3 && loader.batch_size() == 0, "sizes");
    Batches seen;
    std::vector<int64_t> samples_seen;
    for (auto& batch : loader) {
      seen.push_back(ids(batch.data));
      samples_seen.push_back(loader.state().samples_seen);
    }
    // The tail goes to rank 0; rank 1 gets the first batch again.
    const Batches want = accelerator.is_main_process() ? Batches{batches[0], batches[2], batches[4]}
                                                       : Batches{batches[1], batches[3], batches[0]};
    require(seen == want, "batches");
    require(samples_seen == std::vector<int64_t>{4, 10, 0}, "state counts samples");
  });
  // Going on after the first round, on three ranks: what is left is shared out anew.
  test::run_ranks(3, [&](Accelerator& accelerator) {
    auto loader = accelerator.prepare(
        DataLoader(numbers(accelerator, 11), {.batch_sampler = std::make_shared<FixedBatches>(batches)}));
    loader.load_state({.epoch = 0, .samples_seen = 4});
    Batches seen;
    for (auto& batch : loader) seen.push_back(ids(batch.data));
    require(seen == Batches{batches[static_cast<size_t>(2 + accelerator.process_index())]}, "resumed");
    require_contains(error_of([&] { loader.load_state({.epoch = 0, .samples_seen = 5}); }), "whole batches");
  });
}

TEST_CASE("split_batches cuts a batch sampler's batches into parts") {
  AcceleratorOptions options;
  options.dataloader = {.split_batches = true};
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        auto loader = accelerator.prepare(
            DataLoader(numbers(accelerator, 7),
                       {.batch_sampler = std::make_shared<FixedBatches>(Batches{{0, 1, 2, 3}, {4, 5, 6}})}));
        Batches seen;
        std::vector<int64_t> metrics;
        for (auto& batch : loader) {
          seen.push_back(ids(batch.data));
          for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) metrics.push_back(id);
        }
        require(seen == (accelerator.is_main_process() ? Batches{{0, 1}, {4, 5}} : Batches{{2, 3}, {6, 4}}),
                "parts");
        require(metrics == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}, "metrics");
      },
      options);
}

TEST_CASE(
    "torch's samplers work through the adapter, equal on all ranks; its distributed ones are left alone") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::manual_seed(accelerator.process_index());  // ranks differ; the order must not
    const auto sampler = std::make_shared<TorchSamplerAdapter<torch::data::samplers::RandomSampler>>(
        torch::data::samplers::RandomSampler(8), 8, /*seed=*/3);
    auto loader =
        accelerator.prepare(DataLoader(numbers(accelerator, 8), {.batch_size = 2, .sampler = sampler}));
    std::set<int64_t> seen;
    for (auto& batch : loader) {
      for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) seen.insert(id);
    }
    require(seen.size() == 8, "all ranks drew one order");
    require(sampler->order(0) != sampler->order(1), "epochs differ");

    using Distributed = torch::data::samplers::DistributedSequentialSampler;
    const auto sharded = std::make_shared<TorchSamplerAdapter<Distributed>>(
        Distributed(8, 2, static_cast<size_t>(accelerator.process_index())), 4);
    auto own =
        accelerator.prepare(DataLoader(numbers(accelerator, 8), {.batch_size = 2, .sampler = sharded}));
    std::vector<int64_t> mine;
    for (auto& batch : own) {
      for (const int64_t id : ids(batch.data)) mine.push_back(id);
    }
    require(mine == (accelerator.is_main_process() ? std::vector<int64_t>{0, 1, 2, 3}
                                                   : std::vector<int64_t>{4, 5, 6, 7}),
            "not shared out twice");
  });
}

TEST_CASE("options that exclude one another are errors") {
  test::run_ranks(1, [](Accelerator& accelerator) {
    const auto data = numbers(accelerator, 4);
    const auto batches = std::make_shared<FixedBatches>(Batches{{0}});
    const auto sampler = std::make_shared<SequentialSampler>(4);
    require_contains(
        error_of([&] { accelerator.prepare(DataLoader(data, {.shuffle = true, .sampler = sampler})); }),
        "both shuffle and a sampler");
    require_contains(
        error_of([&] { accelerator.prepare(DataLoader(data, {.batch_size = 2, .batch_sampler = batches})); }),
        "batch sampler and also");
    auto empty = accelerator.prepare(
        DataLoader(data, {.batch_sampler = std::make_shared<FixedBatches>(Batches{{0}, {}})}));
    require_contains(error_of([&] {
                       for (auto& batch : empty) (void)batch;
                     }),
                     "batch 1 of a batch sampler");
  });
}
