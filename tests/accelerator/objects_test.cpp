// Collectives over objects and over tensors of different sizes; turns, triggers.
#include <set>
#include <thread>

#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::ids;
using test::require;
using test::require_contains;

TEST_CASE("objects of any serializable type are gathered and broadcast, also in unequal numbers") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const int rank = accelerator.process_index();
    using Entry = std::pair<int64_t, std::string>;
    std::vector<Entry> mine;
    for (int i = 0; i < rank; ++i) mine.emplace_back(rank, std::string(static_cast<size_t>(i), 'x'));
    require(accelerator.gather_object(mine) == std::vector<Entry>{{1, ""}, {2, ""}, {2, "x"}},
            "gather_object");
    require(accelerator.gather_object(std::vector<std::string>{}).empty(), "nothing from anybody");
    const std::map<std::string, std::vector<double>> own = {{concat("rank", rank), {0.5 * rank}}};
    require(
        accelerator.broadcast_object(own, 2) == std::map<std::string, std::vector<double>>{{"rank2", {1.0}}},
        "broadcast_object");
    require(accelerator.broadcast_object(std::string(), 1).empty(), "an empty object");
  });
}

TEST_CASE("tensors are padded to the longest of all ranks, before or after, and then gathered") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const int64_t rank = accelerator.process_index();
    const std::map<std::string, at::Tensor> mine = {{"a", torch::full({rank + 1, 2}, rank)},
                                                    {"b", torch::full({2, rank}, rank)},
                                                    {"scalar", torch::tensor(rank)}};
    const auto rows = accelerator.pad_across_processes(mine.at("a"), {.pad_index = -1});
    require(rows.sizes() == at::IntArrayRef({3, 2}), "size");
    const at::Tensor all = accelerator.gather(rows);
    for (int64_t r = 0; r < 3; ++r) {
      require((all.narrow(0, 3 * r, r + 1) == r).all().item<bool>(), "values");
      require((all.narrow(0, 3 * r + r + 1, 2 - r) == -1).all().item<bool>(), "padding");
    }
    const auto first =
        accelerator.pad_across_processes(mine.at("b"), {.dim = -1, .pad_index = 7, .pad_first = true});
    require(first.sizes() == at::IntArrayRef({2, 2}) &&
                (first.slice(1, 0, 2 - rank) == 7).all().item<bool>() &&
                (first.slice(1, 2 - rank) == rank).all().item<bool>(),
            "pad_first");
    require(accelerator.pad_across_processes(mine.at("scalar")).dim() == 0, "scalars are left alone");
    require_contains(error_of([&] {
                       accelerator.pad_across_processes(torch::ones({2, rank + 1, 3 - rank}), {.dim = 1});
                     }),
                     "rank 0: [2, 1, 3]; rank 1: [2, 2, 2]");
    require_contains(error_of([&] {
                       accelerator.pad_across_processes(
                           torch::ones(std::vector<int64_t>(static_cast<size_t>(rank + 1), 1)));
                     }),
                     "1, 2, 3 on ranks 0 to 2");
  });
}

TEST_CASE("the main process goes first, however long it takes, and its error reaches the others") {
  std::atomic<int> done_by_main = 0;
  AcceleratorOptions options;
  options.timeout = std::chrono::milliseconds(200);
  test::run_ranks(
      3,
      [&](Accelerator& accelerator) {
        accelerator.main_process_first([&] {
          if (accelerator.is_main_process()) {
            std::this_thread::sleep_for(
                std::chrono::milliseconds(600));  // longer than the timeout of collectives
            done_by_main = 1;
          }
          require(done_by_main == 1, "main went first");
        });
        accelerator.local_main_process_first([] {});
        const std::string error = error_of([&] {
          accelerator.main_process_first([&] {
            if (accelerator.is_main_process()) throw std::runtime_error("no space left");
          });
        });
        require_contains(error, "no space left");
        int count = 0;
        accelerator.on_main_process([&] { count += 1; });
        accelerator.on_last_process([&] { count += 10; });
        accelerator.on_process(1, [&] { count += 100; });
        accelerator.on_local_main_process([&] { count += 1000; });
        require(count == std::vector<int>{1001, 100, 10}[static_cast<size_t>(accelerator.process_index())],
                "on_*");
      },
      options);
}

TEST_CASE("one rank's trigger stops all in the same step") {
  std::mutex mutex;
  std::set<int> stops;
  test::run_ranks(3, [&](Accelerator& accelerator) {
    int step = 0;
    for (; step < 20; ++step) {
      if (accelerator.process_index() == 1 && step == 7) accelerator.set_trigger();
      if (accelerator.check_trigger()) break;
    }
    require(!accelerator.check_trigger(), "the trigger is used up");
    const std::lock_guard lock(mutex);
    stops.insert(step);
  });
  CHECK(stops == std::set<int>{7});
}
