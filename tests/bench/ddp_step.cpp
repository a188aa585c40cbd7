// One side of ddp_step.py: the steps of an ordinary training loop over a small or a wide MLP, on the ranks
// that the launcher started. Prints the first losses, for comparison, then the time of every round.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "accelerate/accelerate.h"

namespace {

struct Options {
  int64_t width = 64;
  int64_t layers = 5;
  int64_t batch_size = 32;
  int64_t steps = 100;  // a round
  int64_t rounds = 5;
  bool adamw = false;
};

// Weights and data are formulas, so that both sides have the same ones.
torch::Tensor wave(at::IntArrayRef sizes, double scale, double start) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (torch::sin(torch::arange(count, torch::kDouble) * 0.7 + start) * scale)
      .to(torch::kFloat)
      .reshape(sizes);
}

torch::nn::Sequential make_net(const Options& options) {
  torch::nn::Sequential net;
  for (int64_t i = 0; i < options.layers; ++i) {
    net->push_back(torch::nn::Linear(options.width, i + 1 < options.layers ? options.width : 1));
    if (i + 1 < options.layers) net->push_back(torch::nn::ReLU());
  }
  const torch::NoGradGuard no_grad;
  double start = 0;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(wave(parameter.sizes(), 1 / std::sqrt(static_cast<double>(options.width)), start++));
  }
  return net;
}

void train(const Options& options) {
  torch::set_num_threads(1);
  accelerate::Accelerator accelerator;
  const int64_t samples = options.batch_size * options.steps * accelerator.num_processes();
  const auto data = accelerate::SharedMemoryDataset::create(accelerator, [&] {
    return std::pair(wave({samples, options.width}, 1, 0.5), wave({samples, 1}, 1, 0.1));
  });
  auto net = make_net(options);
  std::unique_ptr<torch::optim::Optimizer> own;
  if (options.adamw) {
    own = std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
  } else {
    own =
        std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(1e-2).momentum(0.9));
  }
  auto [model, optimizer, loader] = accelerator.prepare(
      net, std::move(own), accelerate::DataLoader(data, {.batch_size = options.batch_size}));
  int64_t said = 0;
  for (int64_t round = 0; round <= options.rounds; ++round) {  // the first warms up
    accelerator.wait_for_everyone();
    const auto start = std::chrono::steady_clock::now();
    for (auto& batch : loader) {
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      if (said++ < 10)
        accelerator.print(
            "loss ", accelerator.reduce(loss.detach(), accelerate::ReduceOp::kMean).template item<double>());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (round > 0) accelerator.print("us ", seconds * 1e6 / static_cast<double>(options.steps));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Steps of a training loop over an MLP, timed; see ddp_step.py");
  app.add_option("--width", options.width);
  app.add_option("--layers", options.layers);
  app.add_option("--batch_size", options.batch_size);
  app.add_option("--steps", options.steps);
  app.add_option("--rounds", options.rounds);
  app.add_flag("--adamw", options.adamw);
  CLI11_PARSE(app, argc, argv);
  try {
    train(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", accelerate::error_message(error).c_str());
    return accelerate::exit_code(error);
  }
}
