// What goes wrong in the hands of users must be an error that says so, never memory that is not theirs.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "accelerate/core/read_only_memory.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::ids;
using test::require;
using test::require_contains;

namespace {

AcceleratorOptions alone() {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "alone"};
  options.logger = std::make_shared<Logger>(0, LogLevel::kError);
  return options;
}

SharedMemoryDataset numbers(Accelerator& accelerator, int64_t n) {
  return SharedMemoryDataset::create(accelerator, [n] { return torch::arange(n); });
}

// Claims another number of samples than its order has.
struct WrongSampler final : Sampler {
  int64_t claimed;
  std::vector<int64_t> real;
  WrongSampler(int64_t size, std::vector<int64_t> order) : claimed(size), real(std::move(order)) {}
  int64_t size() const override { return claimed; }
  std::vector<int64_t> order(int64_t) const override { return real; }
};

template <class Loader>
void run_through(Loader& loader) {
  for (auto& batch : loader) (void)batch;
}

struct Items {
  at::Tensor get(size_t i) { return torch::tensor(static_cast<int64_t>(i)); }
  int64_t size() const { return 4; }
};

}  // namespace

TEST_CASE("orders, samples, epochs and counts that can't be are errors") {
  Accelerator accelerator(alone());
  const auto data = numbers(accelerator, 4);
  auto short_order = accelerator.prepare(DataLoader(
      data, {.batch_size = 2, .sampler = std::make_shared<WrongSampler>(40, std::vector<int64_t>{1, 2})}));
  CHECK_THAT(error_of([&] { run_through(short_order); }), ContainsSubstring("expected 40 samples"));
  auto outside = accelerator.prepare(DataLoader(
      ItemDataset(Items{}), {.sampler = std::make_shared<SubsetSampler>(std::vector<int64_t>{1, 9})}));
  CHECK_THAT(error_of([&] { run_through(outside); }), ContainsSubstring("expected 0 to 3, got 9"));
  auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 2}));
  CHECK_THAT(error_of([&] { loader.skip_first_batches(-1); }), ContainsSubstring("0 or more, got -1"));
  CHECK_THAT(error_of([&] { loader.set_epoch(-1); }), ContainsSubstring("0 or more, got -1"));
}

TEST_CASE("size() is what the next loop gives, also after skipping and resuming") {
  Accelerator accelerator(alone());
  auto loader = accelerator.prepare(DataLoader(numbers(accelerator, 10), {.batch_size = 2}));
  const auto count = [&] {
    const int64_t said = loader.size();
    int64_t batches = 0;
    for (auto& batch : loader) batches += batch.size() > 0;
    CHECK(said == batches);
    return batches;
  };
  CHECK(count() == 5);
  loader.skip_first_batches(2);
  CHECK(count() == 3);
  loader.load_state({.epoch = 1, .samples_seen = 6});
  CHECK(count() == 2);
  CHECK(count() == 5);
}

TEST_CASE("a data set with one column is a source of items, and items defined only in part are an error") {
  Accelerator accelerator(alone());
  auto loader = accelerator.prepare(DataLoader(ItemDataset(numbers(accelerator, 6)), {.batch_size = 4}));
  for (auto& batch : loader) CHECK_FALSE(batch.target.defined());
  CHECK_THAT(error_of([] {
               StackCollate{}(std::vector<std::pair<at::Tensor, at::Tensor>>{
                   {torch::ones({1}), torch::ones({1})}, {torch::ones({1}), {}}});
             }),
             ContainsSubstring("defined in 1 of 2"));
}

TEST_CASE("more than two members are no Example, and views of others' memory are no values") {
  struct Three {
    at::Tensor data, target, mask;
  };
  struct Two {
    at::Tensor data, target;
  };
  static_assert(!accelerate::detail::ExampleLike<Three> && accelerate::detail::ExampleLike<Two>);
  static_assert(accelerate::detail::ExampleLike<torch::data::Example<>>);
  static_assert(!Serializable<std::string_view> && !Serializable<std::span<const int>>);
  static_assert(Serializable<std::array<int, 3>> && Serializable<std::string>);
  static_assert(!accelerate::detail::HoldsOnlyTensors<std::pair<at::Tensor, int64_t>>::value);
  static_assert(accelerate::detail::HoldsOnlyTensors<std::map<std::string, std::vector<at::Tensor>>>::value);
  SUCCEED();
}

TEST_CASE("workers that can't be started are an error with numbers") {
  const pid_t child = ::fork();
  if (child == 0) {
    // No more threads; root has no such limit, so it becomes somebody else first.
    constexpr uid_t kNobody = 65534;
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0 || (::getuid() == 0 && ::setuid(kNobody) != 0)) ::_exit(2);
    try {
      accelerate::detail::Prefetcher<int, int> prefetcher([] { return std::optional<int>(1); },
                                                          [](int i) { return i; }, 4, 4);
    } catch (const DataError& error) {
      const std::string text = error.what();
      ::_exit(text.find("expected 4 workers, got 0") != std::string::npos ? 7 : 3);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
}

TEST_CASE("mapped tensors that are only marked as negated come out negated; those on no CPU are refused") {
  const auto data = SharedMemoryDataset::map([] { return torch::_neg_view(torch::arange(4)); });
  const std::vector<int64_t> rows = {2, 0};
  CHECK(ids(data.get_batch(rows).data) == std::vector<int64_t>{-2, 0});
  const auto complex =
      SharedMemoryDataset::map([] { return torch::complex(torch::arange(3.0), torch::arange(3.0)).conj(); });
  CHECK(torch::imag(complex.get_batch(rows).data)[0].item<double>() == -2);
  CHECK_THAT(error_of([] { SharedMemoryDataset::map([] { return torch::ones({2}, torch::kMeta); }); }),
             ContainsSubstring("tensors on the CPU"));
}

TEST_CASE("metrics are exact for batches of any sizes, cut or dealt in turn, and for loops side by side") {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 11; ++i) lengths.push_back(i % 4 + 1);
  const auto buckets =
      std::make_shared<BucketByLengthSampler>(lengths, BucketOptions{.batch_size = 5, .max_elements = 9});
  for (const bool split : {true, false}) {
    for (const bool dispatch : {true, false}) {
      AcceleratorOptions options;
      options.dataloader = {.split_batches = split, .dispatch_batches = dispatch};
      test::run_ranks(
          2,
          [&](Accelerator& accelerator) {
            auto loader =
                accelerator.prepare(DataLoader(numbers(accelerator, 11), {.batch_sampler = buckets}));
            std::vector<int64_t> seen;
            for (auto& batch : loader) {
              for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) seen.push_back(id);
            }
            std::sort(seen.begin(), seen.end());
            std::vector<int64_t> want(11);
            std::iota(want.begin(), want.end(), 0);
            require(seen == want,
                    concat("split ", split, " dispatch ", dispatch, ": ", seen.size(), " samples"));
          },
          options);
    }
  }
  test::run_ranks(2, [](Accelerator& accelerator) {
    auto few = accelerator.prepare(DataLoader(numbers(accelerator, 6), {.batch_size = 4}));
    auto many = accelerator.prepare(DataLoader(numbers(accelerator, 20), {.batch_size = 4}));
    auto first = few.begin();
    require(ids(accelerator.gather_for_metrics(first->data)).size() == 6, "alone");
    auto second = many.begin();  // its batch is the one that is worked on
    require(ids(accelerator.gather_for_metrics(second->data)).size() == 8, "the later loop's first round");
    ++second;
    require(ids(accelerator.gather_for_metrics(second->data)).size() == 8, "its second");
    ++second;
    require(ids(accelerator.gather_for_metrics(second->data)).size() == 4, "its last");
  });
}

TEST_CASE("ranks that disagree about a loader are told which option differs") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    const auto data = numbers(accelerator, 12);
    const int64_t rank = accelerator.process_index();
    require_contains(error_of([&] { accelerator.prepare(DataLoader(data, {.batch_size = 2 + rank})); }),
                     "batch_size of a data loader: expected the same on all ranks, got rank 0: 2; rank 1: 3");
    require_contains(error_of([&] { accelerator.prepare(DataLoader(data, {.shuffle = rank == 0})); }),
                     "shuffle");
    const auto other = numbers(accelerator, 12);
    auto fine = accelerator.prepare(DataLoader(other, {.batch_size = 2}));
    run_through(fine);
  });
}

TEST_CASE("a loop over dealt batches that one rank leaves early is told, not mixed with the next epoch") {
  AcceleratorOptions options;
  options.dataloader.dispatch_batches = true;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        auto loader = accelerator.prepare(DataLoader(numbers(accelerator, 40), {.batch_size = 2}));
        int64_t steps = 0;
        const std::string error = error_of([&] {
          for (auto& batch : loader) {
            (void)batch;
            if (++steps == 3 && accelerator.is_main_process()) break;
          }
          if (accelerator.is_main_process()) run_through(loader);
        });
        if (!accelerator.is_main_process())
          require_contains(error, "expected epoch 0, in which this rank's loop is, got epoch 1");
      },
      options);
}

TEST_CASE("a loader that throws what is no exception is told to the other ranks") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    std::string error = "nothing";
    try {
      SharedMemoryDataset::create(accelerator, []() -> at::Tensor { throw 42; });
    } catch (const std::exception& caught) {
      error = caught.what();
    } catch (int number) {
      error = concat("int ", number);
    }
    require_contains(error, accelerator.is_main_process() ? "int 42" : "no std::exception");
  });
}

TEST_CASE("ragged columns: names, padding and rows that can't be") {
  const auto ragged = [](const Padding& padding) {
    return Ragged{
        .values = torch::ones({3}, torch::kByte), .offsets = torch::tensor({0, 1, 3}), .padding = padding};
  };
  CHECK_THAT(error_of([&] { ragged({.value = 300}).check("t"); }),
             ContainsSubstring("padding value that Byte can hold"));
  CHECK_THAT(error_of([&] { ragged({.multiple_of = INT64_MAX}).check("t"); }),
             ContainsSubstring("a multiple of 1 to"));
  const std::vector<int64_t> outside = {100000};
  CHECK_THAT(error_of([&] { (void)ragged({}).padded(outside); }),
             ContainsSubstring("expected 0 to 1, got 100000"));
  CHECK_THAT(error_of([&] { (void)ragged({}).lengths(outside); }), ContainsSubstring("got 100000"));
  Accelerator accelerator(alone());
  CHECK_THAT(error_of([&] {
               SharedMemoryDataset::create(accelerator, [&] {
                 return ColumnDict{{"x", ragged({})}, {"x_lengths", torch::ones({2})}};
               });
             }),
             ContainsSubstring("Rename it"));
}

TEST_CASE("memory beyond the signal handler's table is still known as read-only") {
  std::vector<std::unique_ptr<char>> blocks;
  for (int i = 0; i < 1500; ++i) {
    blocks.push_back(std::make_unique<char>());
    ReadOnlyMemory::add(blocks.back().get(), 1);
  }
  for (const auto& block : blocks) REQUIRE(ReadOnlyMemory::contains(block.get()));
  for (const auto& block : blocks) ReadOnlyMemory::remove(block.get());
  CHECK_FALSE(ReadOnlyMemory::contains(blocks.front().get()));
}
