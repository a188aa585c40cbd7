// Sizes at the edge: fewer samples than ranks, last batches of one, nothing at all; and what is said about
// them.
#include <mutex>
#include <set>

#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::ids;
using test::require;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

// What rank 0 says, in all runs of one test.
struct Log {
  std::mutex mutex;
  std::string text;
};

// Accelerators whose main process writes to `log`.
void run_logged(int world, Log& log, const std::function<void(Accelerator&)>& body,
                AcceleratorOptions options = {}) {
  test::run_threads(world, [&](int rank, const Store& store, const std::string& job_id) {
    AcceleratorOptions mine = test::thread_rank_options(store, rank, world, job_id, options);
    mine.logger = std::make_shared<Logger>(rank, LogLevel::kInfo, [&log](std::string_view line) {
      const std::lock_guard lock(log.mutex);
      log.text += std::string(line) + "\n";
    });
    Accelerator accelerator(mine);
    body(accelerator);
  });
}

int count_in(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Batches batches_of(Accelerator& accelerator, int64_t n, DataLoaderOptions options,
                   std::vector<int64_t>* metrics) {
  auto loader = accelerator.prepare(
      DataLoader(SharedMemoryDataset::create(accelerator, [n] { return torch::arange(n); }), options));
  Batches out;
  for (auto& batch : loader) {
    out.push_back(ids(batch.data));
    if (metrics == nullptr) continue;
    for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) metrics->push_back(id);
  }
  require(loader.size() == static_cast<int64_t>(out.size()), "size() is what a loop gives");
  return out;
}

}  // namespace

TEST_CASE("a data set of one sample: one step on every rank, counted once") {
  Log log;
  run_logged(2, log, [](Accelerator& accelerator) {
    std::vector<int64_t> metrics;
    require(batches_of(accelerator, 1, {.batch_size = 4}, &metrics) == Batches{{0, 0, 0, 0}}, "batches");
    require(metrics == std::vector<int64_t>{0}, "metrics");
    require(batches_of(accelerator, 1, {.batch_size = 4, .drop_last = true}, nullptr).empty(), "drop_last");
  });
  CHECK(count_in(log.text, "1 samples < 4 x 2: samples will repeat") == 1);
  CHECK(count_in(log.text, "no batch at all: 1 samples are fewer than one round of 8, and drop_last is on") ==
        1);
  AcceleratorOptions uneven;
  uneven.dataloader.even_batches = false;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        const Batches got = batches_of(accelerator, 1, {.batch_size = 4}, nullptr);
        require(got == (accelerator.is_main_process() ? Batches{{0}} : Batches{}), "without even_batches");
      },
      uneven);
}

TEST_CASE("fewer samples than batch x ranks: repeated as HF does, said once, each counted once") {
  Log log;
  run_logged(2, log, [](Accelerator& accelerator) {
    const bool main = accelerator.is_main_process();
    std::vector<int64_t> three, five;
    require(batches_of(accelerator, 3, {.batch_size = 4}, &three) ==
                Batches{main ? std::vector<int64_t>{0, 1, 2, 0} : std::vector<int64_t>{1, 2, 0, 1}},
            "3 samples");
    require(batches_of(accelerator, 5, {.batch_size = 4}, &five) ==
                Batches{main ? std::vector<int64_t>{0, 1, 2, 3} : std::vector<int64_t>{4, 0, 1, 2}},
            "5 samples");
    require(three == std::vector<int64_t>{0, 1, 2} && five == std::vector<int64_t>{0, 1, 2, 3, 4}, "metrics");
  });
  CHECK(count_in(log.text, "3 samples < 4 x 2") == 1);
  CHECK(count_in(log.text, "5 samples < 4 x 2") == 1);
}

TEST_CASE("every remainder: metrics see 0 to n-1, no batch is empty, ranks take equally many steps") {
  std::atomic<int> combinations = 0;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    for (int64_t n = 1; n <= 17; ++n) {
      for (const int64_t batch_size : {1, 2, 3, 4}) {
        for (const bool shuffle : {false, true}) {
          std::vector<int64_t> metrics;
          const Batches got =
              batches_of(accelerator, n, {.batch_size = batch_size, .shuffle = shuffle}, &metrics);
          for (const auto& batch : got) require(!batch.empty(), "no empty batch");
          const auto steps = ids(accelerator.gather(torch::tensor(static_cast<int64_t>(got.size()))));
          require(steps[0] == steps[1], "steps");
          std::sort(metrics.begin(), metrics.end());
          std::vector<int64_t> want(static_cast<size_t>(n));
          std::iota(want.begin(), want.end(), 0);
          require(metrics == want, concat("n ", n, " batch ", batch_size));
          ++combinations;
        }
      }
    }
  });
  CHECK(combinations == 2 * 17 * 4 * 2);
}

TEST_CASE("a mean of each rank as a metric is warned about once: repeats can't be left out of it") {
  Log log;
  run_logged(2, log, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(
        DataLoader(SharedMemoryDataset::create(accelerator, [] { return torch::arange(5, torch::kFloat); }),
                   {.batch_size = 2}));
    for (auto& batch : loader) accelerator.gather_for_metrics(batch.data.mean());
  });
  CHECK(count_in(log.text, "0-d tensor") == 1);
}

TEST_CASE("preparing twice changes nothing, and an order that is shared out already is said once") {
  Log log;
  run_logged(2, log, [](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(8); });
    auto once = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    auto twice = accelerator.prepare(once);
    std::multiset<int64_t> seen;
    for (auto& batch : twice) {
      for (const int64_t id : ids(accelerator.gather(batch.data))) seen.insert(id);
    }
    require(seen.size() == 8 && std::set<int64_t>(seen.begin(), seen.end()).size() == 8, "all samples once");
    using Distributed = torch::data::samplers::DistributedRandomSampler;
    auto own = accelerator.prepare(
        DataLoader(data, {.batch_size = 2,
                          .sampler = std::make_shared<TorchSamplerAdapter<Distributed>>(
                              Distributed(8, 2, static_cast<size_t>(accelerator.process_index())), 4)}));
    seen.clear();
    for (auto& batch : own) {
      for (const int64_t id : ids(accelerator.gather(batch.data))) seen.insert(id);
    }
    require(seen.size() == 8 && std::set<int64_t>(seen.begin(), seen.end()).size() == 8,
            "not shared out twice");
  });
  CHECK(count_in(log.text, "shared out to the ranks already") == 1);
}

TEST_CASE("the total batch size is said once, with its factors") {
  Log log;
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 4;
  run_logged(
      2, log,
      [](Accelerator& accelerator) {
        const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(64); });
        accelerator.prepare(DataLoader(data, {.batch_size = 3}), DataLoader(data, {.batch_size = 8}));
      },
      options);
  CHECK(count_in(log.text,
                 "batch size: 3 per rank x 2 ranks x 4 accumulation steps = 24 samples per optimizer step") ==
        1);
  CHECK(count_in(log.text, "batch size:") == 1);
}
