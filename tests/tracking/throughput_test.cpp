// Rates and step times against numpy's (tests/parity/tracking_gen.py), with a clock that the test turns.
#include "accelerate/tracking/throughput.h"

#include "tracking_test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

using Nanoseconds = std::chrono::nanoseconds;

// A clock that stands still unless it is turned.
struct TestClock {
  std::chrono::steady_clock::time_point now{};
  void turn(int64_t ns) { now += Nanoseconds(ns); }
  ThroughputOptions options(int64_t warmup_steps) {
    return {.warmup_steps = warmup_steps, .clock = [this] { return now; }};
  }
};

// A loader whose batches take a while to come.
struct SlowLoader {
  TestClock& clock;
  int64_t wait_ns;
  int64_t count;

  struct Iterator {
    SlowLoader* loader;
    int64_t place;
    int64_t& operator*() { return place; }
    Iterator& operator++() {
      if (++place < loader->count) loader->clock.turn(loader->wait_ns);
      return *this;
    }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.place == iterator.loader->count;
    }
  };
  Iterator begin() {
    clock.turn(wait_ns);
    return {this, 0};
  }
  std::default_sentinel_t end() { return {}; }
};

constexpr double kSecond = 1e9;

}  // namespace

TEST_CASE("step times equal numpy's mean and percentiles, and the warm-up is left out") {
  const nlohmann::json file = golden("tracking.json");
  CHECK(file.at("step_times").size() == 5);
  for (const auto& one : file.at("step_times")) {
    TestClock clock;
    ThroughputMeter meter(clock.options(2));
    for (int i = 0; i < 2; ++i) {
      clock.turn(7'000'000'000);
      meter.step(1000, 1000);
    }
    CHECK(meter.local().steps == 0);
    CHECK(meter.local().samples_per_second() == 0);
    const auto times = one.at("step_ns").get<std::vector<int64_t>>();
    int64_t whole_ns = 0;
    for (const int64_t ns : times) {
      clock.turn(ns);
      whole_ns += ns;
      meter.step(8, 50);
    }
    const Throughput numbers = meter.local();
    const auto count = static_cast<int64_t>(times.size());
    CHECK(numbers.steps == count);
    CHECK(numbers.samples == 8 * count);
    CHECK(numbers.tokens == 50 * count);
    CHECK(numbers.seconds == Approx(static_cast<double>(whole_ns) / kSecond));
    CHECK(numbers.samples_per_second() == Approx(8 * static_cast<double>(count) * kSecond / whole_ns));
    CHECK(numbers.tokens_per_second() == Approx(50 * static_cast<double>(count) * kSecond / whole_ns));
    CHECK(numbers.step_seconds_mean == Approx(one.at("mean").get<double>()));
    CHECK(numbers.step_seconds_median == Approx(one.at("median").get<double>()));
    CHECK(numbers.step_seconds_p95 == Approx(one.at("p95").get<double>()));
    CHECK(numbers.step_seconds_max == Approx(one.at("max").get<double>()));
    CHECK(numbers.data_share() == 0);
  }
}

TEST_CASE("time between loops is not counted, and waiting for batches is told apart") {
  TestClock clock;
  ThroughputMeter meter(clock.options(0));
  SlowLoader loader{clock, /*wait_ns=*/1'000'000, /*count=*/10};
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int64_t& batch : meter.batches(loader)) {
      clock.turn(3'000'000 + 0 * batch);
      meter.step(4);
    }
    clock.turn(60'000'000'000);  // evaluation
  }
  CHECK(meter.local().steps == 20);
  CHECK(meter.local().seconds == Approx(0.080));
  CHECK(meter.local().data_seconds == Approx(0.020));
  CHECK(meter.local().data_share() == Approx(0.25));
  CHECK(meter.local().steps_per_second() == Approx(250));
  CHECK(meter.local().samples_per_second() == Approx(1000));
  meter.resume();
  clock.turn(4'000'000);
  meter.step(4);
  CHECK(meter.local().seconds == Approx(0.084));
  meter.reset();
  CHECK(meter.local().steps == 0);
  clock.turn(2'000'000);
  meter.step(1);
  CHECK(meter.local().seconds == Approx(0.002));
}

TEST_CASE("a prepared loader and a vector can be watched") {
  std::vector<int> numbers = {1, 2, 3};
  ThroughputMeter meter({.warmup_steps = 0});
  int sum = 0;
  for (int& number : meter.batches(numbers)) {
    sum += number;
    meter.step(1);
  }
  CHECK(sum == 6);
  Accelerator accelerator(alone());
  const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::arange(10); });
  auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 4}));
  int64_t samples = 0;
  for (auto& batch : meter.batches(loader)) {
    samples += batch.data.size(0);
    meter.step(batch.data.size(0));
  }
  CHECK(samples == 10);
  CHECK(meter.local().samples == 13);
  CHECK(meter.local().steps == 6);
}

TEST_CASE("the job's rate counts all ranks' samples in the time of the slowest") {
  for (const int world : {1, 2, 3}) {
    std::atomic<int> checked = 0;
    run_ranks(world, [&](Accelerator& accelerator) {
      const int rank = accelerator.process_index();
      TestClock clock;
      ThroughputMeter meter(clock.options(1));
      for (int i = 0; i < 5; ++i) {
        clock.turn(rank == world - 1 ? 20'000'000 : 10'000'000);
        meter.step(rank + 1, 10);
      }
      const JobThroughput job = meter.job(accelerator.communicator());
      require(job.ranks.size() == static_cast<size_t>(world), "one entry a rank");
      require(job.slowest_rank == world - 1, "the last rank is the slowest");
      require(job.all.steps == 4, "steps");
      require(job.all.samples == 4 * world * (world + 1) / 2, "samples of all");
      require(job.all.tokens == 40 * world, "tokens of all");
      require(std::abs(job.all.seconds - 0.080) < 1e-12, "seconds of the slowest");
      require(std::abs(job.all.step_seconds_max - 0.020) < 1e-12, "its longest step");
      for (int peer = 0; peer < world; ++peer) {
        require(job.ranks[static_cast<size_t>(peer)].samples == 4 * (peer + 1), "samples of a rank");
      }
      ++checked;
    });
    CHECK(checked == world);
  }
}

TEST_CASE("a warm-up that can't be is refused") {
  CHECK_THROWS_WITH(ThroughputMeter({.warmup_steps = -1}), ContainsSubstring("warmup_steps"));
}
