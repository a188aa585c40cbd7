// A rank that logs which samples it trains on, can save where it stands, and can go on from there.
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <thread>

#include "accelerate/accelerate.h"
#include "rank_program.h"

using accelerate::testing::say;

namespace {

struct Options {
  int64_t samples = 64;
  int64_t batch_size = 4;
  int64_t epochs = 3;
  std::optional<uint64_t> seed;
  int64_t save_epoch = -1;
  int64_t save_step = -1;
  std::string save;
  std::string load;
  int64_t step_ms = 0;
  bool synchronize_rng = false;
};

// Every digit, so that equal text means equal bits.
std::string exactly(double value) {
  std::ostringstream out;
  out << std::hexfloat << value;
  return out.str();
}

std::string numbers(const at::Tensor& tensor) {
  std::string out;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    out += accelerate::concat(i > 0 ? "," : "", tensor[i].item<int64_t>());
  return out;
}

// Collective. The weights to a folder beside `path`, the state to `path`.
template <class Model>
void save(accelerate::Accelerator& accelerator, const Model& model, const accelerate::LoaderState& state,
          const std::string& path) {
  accelerator.save_model(model, path + ".model");
  if (!accelerator.is_main_process()) return;
  std::ofstream(path + ".new") << state.epoch << ' ' << state.samples_seen << ' ' << state.world_size << '\n';
  std::rename((path + ".new").c_str(), path.c_str());
}

accelerate::LoaderState load(torch::nn::Linear& net, const std::string& path) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : accelerate::load_safetensors(path + ".model/model.safetensors")) {
    net->named_parameters()[name].copy_(tensor);
  }
  accelerate::LoaderState state;
  std::ifstream(path) >> state.epoch >> state.samples_seen >> state.world_size;
  return state;
}

void run(const Options& options) {
  accelerate::Accelerator accelerator;
  const int rank = accelerator.process_index();
  if (options.seed) accelerate::set_seed(*options.seed);
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  const auto data = accelerate::SharedMemoryDataset::create(accelerator, [&] {
    return std::pair(at::sin(at::arange(options.samples * 4, at::kFloat)).reshape({-1, 4}),
                     at::arange(options.samples));
  });
  accelerate::LoaderState start;
  if (!options.load.empty()) start = load(net, options.load);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, accelerate::DataLoader(data, {.batch_size = options.batch_size, .shuffle = true}));
  if (!options.load.empty()) loader.load_state(start);
  if (options.seed) accelerate::set_seed(*options.seed, /*device_specific=*/true, rank);
  say(accelerate::concat("rank ", rank, " of ", accelerator.num_processes(), " pid ", ::getpid()));
  if (options.synchronize_rng) accelerator.synchronize_rng_states();
  torch::nn::Dropout dropout(0.5);
  say(accelerate::concat("rank ", rank, " mask ",
                         numbers(dropout->forward(at::ones({24})).gt(0).to(at::kLong))));
  for (int64_t epoch = start.epoch; epoch < options.epochs; ++epoch) {
    int64_t step = epoch == start.epoch ? start.samples_seen / loader.total_batch_size() : 0;
    for (auto& batch : loader) {
      optimizer.zero_grad();
      const auto loss = model->forward(batch.data).pow(2).mean();
      accelerator.backward(loss);
      optimizer.step();
      ++step;
      say(accelerate::concat("rank ", rank, " epoch ", epoch, " step ", step, " ids ", numbers(batch.target),
                             " loss ", exactly(loss.item<double>()), " weights ",
                             exactly(net->weight.sum().item<double>())));
      if (epoch == options.save_epoch && step == options.save_step)
        save(accelerator, model, loader.state(), options.save);
      if (options.step_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(options.step_ms));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Epochs, for tests");
  app.add_option("--samples", options.samples);
  app.add_option("--batch_size", options.batch_size);
  app.add_option("--epochs", options.epochs);
  app.add_option("--seed", options.seed);
  app.add_option("--save_epoch", options.save_epoch);
  app.add_option("--save_step", options.save_step);
  app.add_option("--save", options.save);
  app.add_option("--load", options.load);
  app.add_option("--step_ms", options.step_ms);
  app.add_flag("--synchronize_rng", options.synchronize_rng);
  CLI11_PARSE(app, argc, argv);
  return accelerate::testing::run_rank([&] { run(options); });
}
