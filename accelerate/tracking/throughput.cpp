#include "accelerate/tracking/throughput.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "accelerate/comm/communicator.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

double to_seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Between the two nearest of the sorted values, as numpy.percentile does by default.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

constexpr int64_t kFields = 9;

void pack(const Throughput& numbers, double* out) {
  const double values[kFields] = {static_cast<double>(numbers.steps),
                                  static_cast<double>(numbers.samples),
                                  static_cast<double>(numbers.tokens),
                                  numbers.seconds,
                                  numbers.data_seconds,
                                  numbers.step_seconds_mean,
                                  numbers.step_seconds_median,
                                  numbers.step_seconds_p95,
                                  numbers.step_seconds_max};
  std::copy(std::begin(values), std::end(values), out);
}

Throughput unpack(const double* in) {
  Throughput out;
  out.steps = static_cast<int64_t>(in[0]);
  out.samples = static_cast<int64_t>(in[1]);
  out.tokens = static_cast<int64_t>(in[2]);
  out.seconds = in[3];
  out.data_seconds = in[4];
  out.step_seconds_mean = in[5];
  out.step_seconds_median = in[6];
  out.step_seconds_p95 = in[7];
  out.step_seconds_max = in[8];
  return out;
}

}  // namespace

ThroughputMeter::ThroughputMeter(ThroughputOptions options) : options_(std::move(options)) {
  if (options_.warmup_steps < 0) {
    throw ConfigError({.what = "warmup_steps of a ThroughputMeter",
                       .expected = "0 or more",
                       .got = std::to_string(options_.warmup_steps)});
  }
  reset();
}

void ThroughputMeter::reset() {
  warmup_left_ = options_.warmup_steps;
  samples_ = 0;
  tokens_ = 0;
  data_seconds_ = 0;
  step_seconds_.clear();
  resume();
}

void ThroughputMeter::resume() {
  wait_ = {};
  mark_ = options_.clock();
}

void ThroughputMeter::step(int64_t samples, int64_t tokens) {
  const TimePoint now = options_.clock();
  if (warmup_left_ > 0) {
    --warmup_left_;
  } else {
    step_seconds_.push_back(to_seconds(now - mark_));
    data_seconds_ += to_seconds(wait_);
    samples_ += samples;
    tokens_ += tokens;
  }
  mark_ = now;
  wait_ = {};
}

Throughput ThroughputMeter::local() const {
  Throughput out;
  if (step_seconds_.empty()) return out;
  std::vector<double> sorted = step_seconds_;
  std::sort(sorted.begin(), sorted.end());
  out.steps = static_cast<int64_t>(sorted.size());
  out.samples = samples_;
  out.tokens = tokens_;
  out.seconds = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  out.data_seconds = data_seconds_;
  out.step_seconds_mean = out.seconds / static_cast<double>(out.steps);
  out.step_seconds_median = quantile(sorted, 0.5);
  out.step_seconds_p95 = quantile(sorted, 0.95);
  out.step_seconds_max = sorted.back();
  return out;
}

JobThroughput ThroughputMeter::job(Communicator& communicator) const {
  at::Tensor mine = at::empty({1, kFields}, at::TensorOptions(at::kDouble));
  pack(local(), mine.mutable_data_ptr<double>());
  const at::Tensor all = communicator.all_gather(mine);
  JobThroughput out;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    out.ranks.push_back(unpack(all.const_data_ptr<double>() + rank * kFields));
  }
  const auto slowest =
      std::max_element(out.ranks.begin(), out.ranks.end(),
                       [](const Throughput& a, const Throughput& b) { return a.seconds < b.seconds; });
  out.slowest_rank = static_cast<int>(slowest - out.ranks.begin());
  out.all = *slowest;
  out.all.samples = 0;
  out.all.tokens = 0;
  for (const Throughput& rank : out.ranks) {
    out.all.samples += rank.samples;
    out.all.tokens += rank.tokens;
  }
  return out;
}

}  // namespace accelerate
