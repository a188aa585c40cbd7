#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;

using test::error_of;
using test::ids;
using test::require;

TEST_CASE("gather_for_metrics gives every sample exactly once, for every size, batch and world") {
  for (const int world : {1, 2, 3}) {
    test::run_ranks(world, [](Accelerator& accelerator) {
      for (int64_t n = 1; n <= 13; ++n) {
        const auto data = SharedMemoryDataset::create(accelerator, [n] { return torch::arange(n); });
        for (const int64_t batch_size : {1, 2, 3, 4}) {
          for (const bool shuffle : {false, true}) {
            auto [train, eval] =
                accelerator.prepare(DataLoader(data, {.batch_size = batch_size, .shuffle = shuffle}),
                                    DataLoader(data, {.batch_size = 2}));
            std::multiset<int64_t> seen;
            for (auto& batch : train) {
              require(batch.size() > 0, "an empty batch");
              // A second loader that runs inside the first must not disturb it.
              std::multiset<int64_t> inner;
              for (auto& other : eval) {
                for (const int64_t id : ids(accelerator.gather_for_metrics(other.data))) inner.insert(id);
              }
              require(inner.size() == static_cast<size_t>(n), "inner loader");
              for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) seen.insert(id);
            }
            require(seen.size() == static_cast<size_t>(n) && *seen.begin() == 0 && *seen.rbegin() == n - 1 &&
                        std::set<int64_t>(seen.begin(), seen.end()).size() == seen.size(),
                    concat("n ", n, " batch ", batch_size, ": ", seen.size(), " samples"));
          }
        }
      }
    });
  }
}

TEST_CASE(
    "without a seed all ranks draw the main process's order, a new one each epoch, also after a break") {
  std::mutex mutex;
  std::map<int64_t, std::multiset<int64_t>> by_epoch;
  std::vector<std::vector<int64_t>> first_rank_orders;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(64); });
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 4, .shuffle = true}));
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> order;
      for (auto& batch : loader) {
        for (const int64_t id : ids(batch.data)) order.push_back(id);
        if (epoch == 1) break;  // left half way
      }
      const std::lock_guard lock(mutex);
      by_epoch[epoch].insert(order.begin(), order.end());
      if (accelerator.is_main_process()) first_rank_orders.push_back(order);
    }
    require(loader.epoch() == 3, "epochs are counted");
  });
  for (const int64_t epoch : {0, 2}) {
    CHECK(by_epoch[epoch].size() == 64);
    CHECK(std::set<int64_t>(by_epoch[epoch].begin(), by_epoch[epoch].end()).size() ==
          64);  // disjoint, complete
  }
  CHECK(first_rank_orders[0] != first_rank_orders[2]);
  CHECK(first_rank_orders[1] !=
        std::vector<int64_t>(first_rank_orders[0].begin(), first_rank_orders[0].begin() + 4));
}

TEST_CASE("a shared data set is the same bytes on all ranks, of any dtype and shape") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    int loads = 0;
    const auto data = SharedMemoryDataset::create(accelerator, [&] {
      ++loads;
      return TensorDict{{"image", torch::arange(40).reshape({5, 2, 4}).to(torch::kHalf).transpose(1, 2)},
                        {"flag", torch::tensor({true, false, true, true, false})},
                        {"text", torch::arange(15).reshape({5, 3}).to(torch::kByte)},
                        {"nothing", torch::empty({5, 0})}};
    });
    require(loads == (accelerator.is_local_main_process() ? 1 : 0), "loaded by the local main process only");
    require(data.size() == 5 && data.names().size() == 4, "size and names");
    require(data.tensor("image").equal(torch::arange(40).reshape({5, 2, 4}).to(torch::kHalf).transpose(1, 2)),
            "image");
    require(data.tensor("nothing").sizes() == at::IntArrayRef({5, 0}), "empty tensor");
    const std::vector<int64_t> rows = {4, 0, 4};
    Batch batch = data.get_batch(rows);
    require(batch["text"].equal(
                torch::arange(15).reshape({5, 3}).to(torch::kByte).index_select(0, torch::tensor({4, 0, 4}))),
            "batch");
    require(batch.size() == 3 && batch.contains("flag") && !batch.contains("data"), "batch names");
    batch["text"].zero_();  // a batch is the user's own memory
    require(data.tensor("text")[4][2].item<int>() == 14, "the shared copy is untouched");
    const auto contains = test::require_contains;
    contains(error_of([&] { (void)data.tensor("imgae"); }), "Did you mean 'image'?");
    contains(error_of([&] { (void)batch["txt"]; }), "Did you mean 'text'?");
    const std::vector<int64_t> outside = {5};
    contains(error_of([&] { data.get_batch(outside); }), "expected 0 to 4, got 5");
  });
}

TEST_CASE("a loader that throws is reported by all ranks at once, and leaves nothing") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const auto fails = [&](const std::function<TensorDict()>& load, const std::string& part,
                           const SharedMemoryDatasetOptions& options = {}) {
      const std::string text = error_of([&] { SharedMemoryDataset::create(accelerator, load, options); });
      require(text.find(part) != std::string::npos, concat("'", part, "' not in: ", text));
    };
    fails([]() -> TensorDict { throw std::runtime_error("boom 42"); }, "boom 42");
    fails([] { return TensorDict{}; }, "no tensors");
    fails(
        [] {
          return TensorDict{{"a", torch::ones({3})}, {"b", torch::ones({4})}};
        },
        "expected a dense tensor of 3 rows");
    fails([] { return TensorDict{{"a", torch::tensor(1.0)}}; }, "a scalar");
    fails([] { return TensorDict{{"a", torch::ones({2})}}; }, "/nowhere", {.directory = "/nowhere"});
    const auto after = SharedMemoryDataset::create(accelerator, [] { return torch::ones({2}); });
    require(after.size() == 2, "a later data set works");
  });
}

TEST_CASE("loader options that can't be are errors that name the numbers") {
  AcceleratorOptions options;
  options.dataloader = {.split_batches = true};
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(8); });
        const auto contains = test::require_contains;
        contains(error_of([&] { accelerator.prepare(DataLoader(data, {.batch_size = 3})); }),
                 "expected a batch size that is a multiple of 2 ranks, got 3. Use 4");
        contains(error_of([&] { accelerator.prepare(DataLoader(data, {.batch_size = 0})); }),
                 "positive number, got 0");
        auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 4}));
        require(loader.batch_size() == 2 && loader.total_batch_size() == 4 && loader.size() == 2,
                "split batch sizes");
        auto again = accelerator.prepare(loader);  // prepared twice is not sharded twice
        require(again.batch_size() == 2 && again.size() == 2, "prepared twice");
      },
      options);
}
