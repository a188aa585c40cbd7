// What a prepared step costs over the hand-written LibTorch loop, in one process: the same model, data and
// optimizer, rounds of both in turn, median of the differences. Equal losses are checked first.
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
constexpr int kSteps = 400;
constexpr int64_t kBatch = 32;

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 1));
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  accelerate::AcceleratorOptions options;
  options.environment = accelerate::EnvVars();
  options.fused_optimizer = false;  // both sides take LibTorch's own step: only what is around it differs
  accelerate::Accelerator accelerator(options);

  const auto x = torch::randn({kBatch, 64});
  const auto y = torch::randn({kBatch, 1});
  auto plain_net = make_net();
  torch::optim::SGD plain_sgd(plain_net->parameters(), 1e-3);
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  torch::optim::StepLR plain_decay(plain_sgd, 1000000);
  torch::optim::StepLR decay(sgd, 1000000);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);

  const auto plain_step = [&] {
    plain_sgd.zero_grad();
    auto loss = torch::mse_loss(plain_net->forward(x), y);
    loss.backward();
    plain_sgd.step();
    plain_decay.step();
    return loss;
  };
  const auto prepared_step = [&] {
    const auto micro_batch = accelerator.accumulate(model);
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model->forward(x), y);
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    return loss;
  };

  for (int i = 0; i < 200; ++i) {
    const double a = plain_step().item<double>();
    const double b = prepared_step().item<double>();
    if (a != b) {
      std::printf("step %d: the losses differ (%.9g and %.9g); nothing was timed\n", i, a, b);
      return 1;
    }
  }
  std::vector<double> plain_times;
  std::vector<double> differences;
  for (int round = 0; round < kRounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) plain_step();
    const double plain = microseconds_since(start) / kSteps;
    start = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) prepared_step();
    plain_times.push_back(plain);
    differences.push_back(microseconds_since(start) / kSteps - plain);
  }
  std::string load = "?";
  std::getline(std::ifstream("/proc/loadavg"), load);
  const double difference = median(differences);
  std::printf(
      "hand-written step %.1f us, prepared step %+.2f us (medians of %d rounds of %d; limit 20 us); load "
      "%s\n",
      median(plain_times), difference, kRounds, kSteps, load.c_str());
  return difference <= 20.0 ? 0 : 1;
}
