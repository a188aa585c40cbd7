// Loading while the ranks still start.
#include <atomic>
#include <thread>

#include "accelerate/data/load_ahead.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::require;
using test::require_contains;

namespace {

EnvVars rank_of_two(int rank) {
  return test::variables({{"RANK", std::to_string(rank)},
                          {"LOCAL_RANK", std::to_string(rank)},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"}});
}

}  // namespace

TEST_CASE(
    "the builder's loader runs before there is an Accelerator, the others' never, and errors come out of "
    "create") {
  std::array<std::atomic<int>, 2> loads{};
  std::array<std::optional<LoadAhead<std::function<at::Tensor()>>>, 2> loading;
  for (int rank = 0; rank < 2; ++rank) {
    const auto index = static_cast<size_t>(rank);
    loading[index] = load_ahead(std::function<at::Tensor()>([&loads, index] {
                                  ++loads[index];
                                  return torch::arange(5);
                                }),
                                rank_of_two(rank));
  }
  for (int i = 0; i < 2000 && loads[0] == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(loads[0] == 1);
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const auto& own = *loading[static_cast<size_t>(accelerator.process_index())];
    const auto data = SharedMemoryDataset::create(accelerator, own);
    require(data.tensor("data").equal(torch::arange(5)), "data");
  });
  CHECK(loads[0] == 1);
  CHECK(loads[1] == 0);
  const auto fails = [](int rank) {
    return load_ahead(
        std::function<at::Tensor()>([]() -> at::Tensor { throw std::runtime_error("boom 42"); }),
        rank_of_two(rank));
  };
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const auto own = fails(accelerator.process_index());
    require_contains(error_of([&] { SharedMemoryDataset::create(accelerator, own); }), "boom 42");
  });
}
