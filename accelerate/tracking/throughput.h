#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace accelerate {

class Communicator;

struct ThroughputOptions {
  /// Steps at the start that are not counted: the first ones allocate memory and fill caches.
  int64_t warmup_steps = 1;
  /// What time it is; for tests.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
};

/// What a ThroughputMeter has counted, of one rank or of all. All numbers are 0 before the first counted
/// step.
struct Throughput {
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t tokens = 0;
  /// Time of the counted steps, waiting for data included.
  double seconds = 0;
  /// Of that, time in which the loop waited for its next batch; only with ThroughputMeter::batches().
  double data_seconds = 0;
  /// Times of single steps; percentiles are interpolated, as numpy's are.
  double step_seconds_mean = 0;
  double step_seconds_median = 0;
  double step_seconds_p95 = 0;
  double step_seconds_max = 0;

  double steps_per_second() const { return rate(static_cast<double>(steps)); }
  double samples_per_second() const { return rate(static_cast<double>(samples)); }
  double tokens_per_second() const { return rate(static_cast<double>(tokens)); }
  /// Share of the time in which the loop waited for data, 0 to 1.
  double data_share() const { return rate(data_seconds); }

 private:
  double rate(double count) const { return seconds > 0 ? count / seconds : 0; }
};

/// The ranks of a job, which train side by side.
struct JobThroughput {
  /// Steps and times of the slowest rank; samples and tokens of all ranks together, so that
  /// samples_per_second() is the job's.
  Throughput all;
  /// Rank by rank.
  std::vector<Throughput> ranks;
  int slowest_rank = 0;
};

/// Counts steps, samples and tokens of a training loop and measures how long its steps take:
///
///     ThroughputMeter meter;
///     for (auto& batch : meter.batches(loader)) {
///       ...
///       optimizer.step();
///       meter.step(batch.data.size(0));
///     }
///     accelerator.print(meter.job(accelerator.communicator()).all.samples_per_second(), " samples/s");
///
/// A step lasts from the end of the one before (or from resume()) to its call of step(). It is the host's
/// time: on a device that works on its own, single steps show when work was handed over, their sum is right.
/// Takes 8 bytes a step. One thread.
class ThroughputMeter {
 public:
  explicit ThroughputMeter(ThroughputOptions options = {});

  /// Local. A step has ended, in which this rank worked on `samples` samples (and `tokens` tokens). Call it
  /// once per optimizer step or once per micro-batch, as you like; the rates are the same.
  void step(int64_t samples, int64_t tokens = 0);
  /// Local. The next step begins now: time since the last one (evaluation, saving) is not counted.
  void resume();
  /// Local. Forgets everything, and begins with the warm-up again.
  void reset();

  /// Local. `loader` for a loop that tells the meter how long it waits for each batch, at two looks at the
  /// clock a batch; beginning the loop resumes the meter. Any range will do.
  template <class Loader>
  auto batches(Loader& loader) {
    return Batches<Loader>(*this, loader);
  }

  /// Local. This rank's numbers.
  Throughput local() const;
  /// Collective. The numbers of all ranks, on every rank.
  JobThroughput job(Communicator& communicator) const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  template <class Loader>
  class Batches {
   public:
    using Inner = decltype(std::begin(std::declval<Loader&>()));
    using Sentinel = decltype(std::end(std::declval<Loader&>()));

    class Iterator {
     public:
      Iterator(ThroughputMeter& meter, Inner inner) : meter_(&meter), inner_(std::move(inner)) {}
      decltype(auto) operator*() { return *inner_; }
      Iterator& operator++() {
        const TimePoint begin = meter_->options_.clock();
        ++inner_;
        meter_->add_wait(meter_->options_.clock() - begin);
        return *this;
      }
      bool operator!=(const Sentinel& end) const { return !(inner_ == end); }

     private:
      ThroughputMeter* meter_;
      Inner inner_;
    };

    Batches(ThroughputMeter& meter, Loader& loader) : meter_(meter), loader_(loader) {}
    Iterator begin() {
      meter_.resume();
      const TimePoint begin = meter_.options_.clock();
      Iterator first(meter_, std::begin(loader_));  // fetches the first batch
      meter_.add_wait(meter_.options_.clock() - begin);
      return first;
    }
    Sentinel end() { return std::end(loader_); }

   private:
    ThroughputMeter& meter_;
    Loader& loader_;
  };

  void add_wait(std::chrono::steady_clock::duration wait) { wait_ += wait; }

  ThroughputOptions options_;
  int64_t warmup_left_ = 0;
  TimePoint mark_;                                 // the current step's begin
  std::chrono::steady_clock::duration wait_ = {};  // for data, in the current step
  int64_t samples_ = 0;
  int64_t tokens_ = 0;
  double data_seconds_ = 0;
  std::vector<double> step_seconds_;
};

}  // namespace accelerate
