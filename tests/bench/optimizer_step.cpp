// An AdamW step by fused kernels against LibTorch's own loop, in one process: the 200 weights of a small
// transformer, rounds of both in turn, median of the ratios. Equal results are checked first. With
// ACCELERATE_BENCH_TIMES=FILE the times of every round are written there, for optimizer_step.py.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace {

constexpr int kRounds = 25;
constexpr int kSteps = 8;
constexpr int kCheckedSteps = 5;
constexpr int kLayers = 16;
constexpr int64_t kWidth = 128;
constexpr double kLimit = 0.5;

// 12 weights a layer as in a GPT block, and 8 around them: 200, 3.5 million numbers.
struct Transformer : torch::nn::Module {
  Transformer() {
    torch::manual_seed(1);
    const int64_t w = kWidth;
    for (int layer = 0; layer < kLayers; ++layer) {
      add({w}), add({w}), add({3 * w, w}), add({3 * w}), add({w, w}), add({w});
      add({w}), add({w}), add({4 * w, w}), add({4 * w}), add({w, 4 * w}), add({w});
    }
    add({2048, w}), add({256, w}), add({w}), add({w}), add({w, w}), add({w}), add({10, w}), add({10});
  }
  void add(const std::vector<int64_t>& shape) {
    all.push_back(register_parameter(accelerate::concat("w", all.size()), torch::randn(shape)));
  }
  std::vector<at::Tensor> all;
};

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of weights above 1, the relative difference.
double largest_difference(const Transformer& a, const Transformer& b) {
  double largest = 0;
  for (size_t i = 0; i < a.all.size(); ++i) {
    const auto difference = (a.all[i] - b.all[i]).abs() / a.all[i].abs().clamp_min(1);
    largest = std::max(largest, difference.max().item<double>());
  }
  return largest;
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  accelerate::AcceleratorOptions options;
  options.environment = accelerate::EnvVars();
  accelerate::Accelerator accelerator(options);

  Transformer own;
  torch::optim::AdamW own_adam(own.all, torch::optim::AdamWOptions(1e-3));
  const auto net = std::make_shared<Transformer>();
  torch::optim::AdamW adam(net->all, torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (size_t i = 0; i < own.all.size(); ++i) {
    own.all[i].mutable_grad() = torch::randn_like(own.all[i]);
    net->all[i].mutable_grad() = own.all[i].grad().clone();
  }

  for (int i = 0; i < kCheckedSteps; ++i) {
    own_adam.step();
    optimizer.step();
  }
  const double difference = largest_difference(own, *net);
  if (difference > 1e-6) {
    std::printf("the weights differ by %.1e after %d steps; nothing was timed\n", difference, kCheckedSteps);
    return 1;
  }
  std::vector<double> own_times;
  std::vector<double> fused_times;
  std::vector<double> ratios;
  for (int round = 0; round < kRounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) own_adam.step();
    own_times.push_back(microseconds_since(start) / kSteps);
    start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) optimizer.step();
    fused_times.push_back(microseconds_since(start) / kSteps);
    ratios.push_back(fused_times.back() / own_times.back());
  }
  if (const char* path = std::getenv("ACCELERATE_BENCH_TIMES")) {
    std::ofstream out(path);
    for (const double time : fused_times) out << time << "\n";
  }
  std::string load = "?";
  std::getline(std::ifstream("/proc/loadavg"), load);
  std::printf(
      "AdamW, %zu weights: own loop %.0f us, prepared %.0f us, ratio %.3f (medians of %d rounds of %d; limit "
      "%.1f; "
      "weights differ by at most %.1e); load %s\n",
      own.all.size(), median(own_times), median(fused_times), median(ratios), kRounds, kSteps, kLimit,
      difference, load.c_str());
  return median(ratios) <= kLimit ? 0 : 1;
}
