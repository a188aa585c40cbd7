// Items, transforms, worker threads, and going on in the middle of an epoch.
#include <dirent.h>

#include <set>

#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::ids;
using test::require;

namespace {

int thread_count() {
  int count = 0;
  DIR* folder = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(folder)) count += entry->d_name[0] != '.';
  ::closedir(folder);
  return count;
}

AcceleratorOptions alone() {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "alone"};
  return options;
}

// Item i is a sequence of i % 4 + 1 times the number i, and i itself.
struct Sequences {
  int64_t count = 10;
  int64_t bad = -1;
  torch::data::Example<> get(size_t i) {
    if (static_cast<int64_t>(i) == bad) throw std::runtime_error("boom 42");
    const auto n = static_cast<int64_t>(i);
    return {torch::full({n % 4 + 1}, n), torch::tensor(n)};
  }
  int64_t size() const { return count; }
};

struct Doubled {
  torch::data::Example<> operator()(torch::data::Example<> item) const {
    return {item.data * 2, item.target};
  }
};

}  // namespace

TEST_CASE("items are transformed, padded to the longest and come in order, with any number of workers") {
  for (const int64_t workers : {0, 1, 3}) {
    test::run_ranks(2, [&](Accelerator& accelerator) {
      ItemDataset data(Sequences{}, Doubled{}, PadCollate{-1});
      auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 3, .num_workers = workers}));
      std::vector<int64_t> seen;
      for (auto& batch : loader) {
        int64_t longest = 0;
        for (const int64_t id : ids(batch.target)) longest = std::max(longest, id % 4 + 1);
        require(batch.data.size(1) == longest, "padded to the longest");
        for (int64_t row = 0; row < batch.data.size(0); ++row) {
          const int64_t id = batch.target[row].template item<int64_t>();
          const int64_t length = id % 4 + 1;
          require((batch.data[row].narrow(0, 0, length) == 2 * id).all().template item<bool>(), "values");
          require((batch.data[row].narrow(0, length, longest - length) == -1).all().template item<bool>(),
                  "padding");
        }
        for (const int64_t id : ids(accelerator.gather_for_metrics(batch.target))) seen.push_back(id);
      }
      std::vector<int64_t> want(10);
      std::iota(want.begin(), want.end(), 0);
      require(seen == want, concat("order with ", workers, " workers"));
    });
  }
}

TEST_CASE("datasets of torch::data work as they are") {
  struct Squares : torch::data::Dataset<Squares> {
    torch::data::Example<> get(size_t i) override {
      const auto n = static_cast<int64_t>(i);
      return {torch::tensor({n, n * n}), torch::tensor(n)};
    }
    torch::optional<size_t> size() const override { return 5; }
  };
  Accelerator accelerator(alone());
  auto loader = accelerator.prepare(DataLoader(ItemDataset(Squares{}), {.batch_size = 2}));
  std::vector<int64_t> squares;
  for (auto& batch : loader) {
    for (const int64_t value : ids(batch.data.select(1, 1).contiguous())) squares.push_back(value);
  }
  CHECK(squares == std::vector<int64_t>{0, 1, 4, 9, 16});
}

TEST_CASE("a sample that can't be loaded is named, in its turn, whatever the number of workers") {
  for (const int64_t workers : {0, 2}) {
    Accelerator accelerator(alone());
    auto loader =
        accelerator.prepare(DataLoader(ItemDataset(Sequences{.bad = 7}, NoTransform{}, PadCollate{}),
                                       {.batch_size = 2, .num_workers = workers}));
    int batches = 0;
    std::string message;
    std::string original;
    try {
      for (auto& batch : loader) batches += batch.data.defined();
    } catch (const DataError& error) {
      message = error.what();
      try {
        try {
          std::rethrow_if_nested(error);
        } catch (const DataError& inner) {
          std::rethrow_if_nested(inner);
        }
      } catch (const std::runtime_error& inner) {
        original = inner.what();
      }
    }
    CHECK(batches == 3);  // all before it came
    CHECK(message == "batch 3 (samples 6, 7): sample 7: boom 42");
    CHECK(original == "boom 42");
  }
}

TEST_CASE("no thread is left after a loop, also one that is left half way") {
  Accelerator accelerator(alone());
  const int before = thread_count();
  auto loader =
      accelerator.prepare(DataLoader(ItemDataset(Sequences{.count = 100}, NoTransform{}, PadCollate{}),
                                     {.batch_size = 2, .num_workers = 3}));
  for (auto& batch : loader) {
    CHECK(thread_count() >= before + 3);
    if (batch.target[0].item<int64_t>() >= 10) break;
  }
  CHECK(thread_count() == before);
  CHECK_THROWS_WITH(
      [&] {
        for (auto& batch : loader)
          throw std::runtime_error(concat("stopped at ", batch.target[0].item<int64_t>()));
      }(),
      "stopped at 0");
  CHECK(thread_count() == before);
  CHECK_THROWS_WITH(accelerator.prepare(DataLoader(ItemDataset(Sequences{}), {.num_workers = -1})),
                    ContainsSubstring("num_workers of 0 or more"));
}

TEST_CASE("a loader goes on where its state says, with the same order in the same world") {
  for (const int64_t stop : {1, 3, 5, 8}) {
    test::run_ranks(2, [&](Accelerator& accelerator) {
      const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(31); });
      const DataLoaderOptions options{.batch_size = 2, .shuffle = true, .seed = 9};
      auto straight = accelerator.prepare(DataLoader(data, options));
      auto first = accelerator.prepare(DataLoader(data, options));
      auto second = accelerator.prepare(DataLoader(data, options));
      std::vector<std::vector<int64_t>> want;
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (auto& batch : straight) want.push_back(ids(batch.data));
      }
      std::vector<std::vector<int64_t>> got;
      for (auto& batch : first) got.push_back(ids(batch.data));  // epoch 0
      int64_t step = 0;
      for (auto& batch : first) {
        got.push_back(ids(batch.data));
        if (++step == stop) break;
      }
      const LoaderState state = first.state();
      require(state.epoch == 1 + stop / 8, concat("epoch ", state.epoch));
      second.load_state(state);
      for (int64_t epoch = state.epoch; epoch < 3; ++epoch) {
        for (auto& batch : second) got.push_back(ids(batch.data));
      }
      require(got == want, concat("order after a stop at ", stop));
    });
  }
}

TEST_CASE("a state of another world or batch size: the rest of the epoch comes once, metrics stay exact") {
  LoaderState state;
  std::multiset<int64_t> seen;
  std::mutex mutex;
  const auto run = [&](int world, int64_t batch_size, int64_t stop) {
    LoaderState after;
    test::run_ranks(world, [&](Accelerator& accelerator) {
      const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(31); });
      auto loader =
          accelerator.prepare(DataLoader(data, {.batch_size = batch_size, .shuffle = true, .seed = 3}));
      loader.load_state(state);
      int64_t step = 0;
      for (auto& batch : loader) {
        const auto all = ids(accelerator.gather_for_metrics(batch.data));
        if (accelerator.is_main_process()) {
          const std::lock_guard lock(mutex);
          seen.insert(all.begin(), all.end());
        }
        if (++step == stop) break;
      }
      accelerator.wait_for_everyone();
      if (accelerator.is_main_process()) after = loader.state();
    });
    state = after;
  };
  run(2, 2, 3);  // 12 samples
  CHECK(state.samples_seen == 12);
  run(3, 3, 1);  // 9 more
  CHECK(state.samples_seen == 21);
  run(1, 4, 100);  // the rest
  CHECK(state.epoch == 1);
  CHECK(seen.size() == 31);
  CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 31);
}

TEST_CASE("skip_first_batches leaves out batches of the next loop only, and metrics stay exact") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(10); });
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
    loader.skip_first_batches(1);
    std::vector<int64_t> seen;
    for (auto& batch : loader) {
      for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) seen.push_back(id);
    }
    require(seen == std::vector<int64_t>{4, 5, 6, 7, 8, 9}, "without the first");
    int64_t batches = 0;
    for (auto& batch : loader) batches += batch.size() > 0;
    require(batches == 3, "whole again");
    loader.skip_first_batches(99);
    for (auto& batch : loader) require(batch.size() < 0, "nothing is left");
  });
}
