// Trains a small convolutional network on 5,000 real MNIST images: 4,000 to train, 1,000 to test.
//
//   accel launch --cpu --num_processes 2 ./01_mnist --data mnist_5k.csv.gz
//
// The same binary runs alone, under torchrun and under mpirun. Equal total batches give equal results: one
// process with
// --batch_size 64 trains as two with --batch_size 32.
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <optional>

#include "accelerate/accelerate.h"

struct Options {
  std::string data = "mnist_5k.csv.gz";
  std::string save;
  std::string checkpoints;
  int64_t epochs = 12;
  int64_t batch_size = 32;
  std::optional<int64_t> accumulation_steps;
  double lr = 2e-3;
  int64_t seed = 42;
  bool losses = false;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
    fc1 = register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128));
    fc2 = register_module("fc2", torch::nn::Linear(128, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1->forward(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2->forward(x)), 2);
    return fc2->forward(torch::relu(fc1->forward(x.flatten(1))));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Net);

// Rows of 784 pixels (0 to 255) and a label, as the file has them, sorted by digit.
accelerate::TensorDict load_mnist(const std::string& path) {
  constexpr int64_t kPixels = 28 * 28;
  const torch::Tensor rows =
      accelerate::load_csv(path, {.delimiter = ',', .header = false}).values.to(torch::kFloat);
  if (rows.size(1) != kPixels + 1) {
    throw accelerate::DataError({.what = path,
                                 .expected = "rows of 785 comma-separated numbers",
                                 .got = accelerate::concat("rows of ", rows.size(1))});
  }
  return {{"data", rows.narrow(1, 0, kPixels).reshape({-1, 1, 28, 28}).div(255).sub(0.1307).div(0.3081)},
          {"target", rows.select(1, kPixels).to(torch::kLong)}};
}

// Every fifth image is for testing, so that both parts have all digits in equal shares.
accelerate::TensorDict part(const accelerate::TensorDict& all, bool test) {
  const int64_t count = all.at("data").size(0);
  const auto number = torch::arange(count);
  const auto rows = torch::nonzero(test ? number % 5 == 4 : number % 5 != 4).flatten();
  return {{"data", all.at("data").index_select(0, rows)}, {"target", all.at("target").index_select(0, rows)}};
}

// Bars are for people: under the launcher, which says so, or on a terminal.
bool is_terminal() {
  return ::isatty(STDERR_FILENO) != 0 || std::getenv("ACCELERATE_TERMINAL") != nullptr;
}

template <class Model, class Loader>
double accuracy(accelerate::Accelerator& accelerator, Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  int64_t seen = 0;
  for (auto& batch : loader) {
    const auto hits = model->forward(batch.data).argmax(1) == batch.target;
    const auto all = accelerator.gather_for_metrics(hits);
    right += all.sum().template item<int64_t>();
    seen += all.numel();
  }
  model->train();
  return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(seen, 1));
}

void train(const Options& options) {
  accelerate::Accelerator accelerator(
      {.gradient_accumulation_steps = options.accumulation_steps,
       .project_config = {
           .project_dir = options.checkpoints, .automatic_checkpoint_naming = true, .total_limit = 2}});
  accelerate::set_seed(static_cast<uint64_t>(options.seed));
  const int64_t accumulated = accelerator.gradient_accumulation_steps();

  const auto train_set = accelerate::SharedMemoryDataset::create(
      accelerator, [&] { return part(load_mnist(options.data), false); });
  const auto test_set = accelerate::SharedMemoryDataset::create(
      accelerator, [&] { return part(load_mnist(options.data), true); });

  Net net;
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(options.lr));
  torch::optim::StepLR decay(adam, static_cast<unsigned>(std::max<int64_t>(1, options.epochs / 2)), 0.3);
  // drop_last: a last round filled up with repeated samples would weigh those twice.
  auto [model, optimizer, scheduler, loader, test_loader] = accelerator.prepare(
      net, adam, decay,
      accelerate::DataLoader(train_set,
                             {.batch_size = options.batch_size, .shuffle = true, .drop_last = true}),
      accelerate::DataLoader(test_set, {.batch_size = 100}));

  accelerator.print(accelerator.num_processes(),
                    accelerator.num_processes() == 1 ? " rank on " : " ranks on ", accelerator.device(), " (",
                    accelerator.strategy().name(), "), batch ", loader.batch_size(), " a rank x ",
                    accelerator.num_processes(), " x ", accumulated,
                    " accumulated = ", loader.total_batch_size() * accumulated, " in all, ", train_set.size(),
                    " images to train, ", test_set.size(), " to test");

  const bool saves = !options.checkpoints.empty();
  if (saves) {
    // After a kill or a stop: where it was, in the middle of an epoch too.
    if (const auto loaded = accelerator.resume()) accelerator.print("goes on from ", loaded->path);
  }
  for (int64_t epoch = loader.epoch(); epoch < options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    auto loss_sum = torch::zeros({});
    int64_t step = 0;
    {
      std::optional<accelerate::ProgressBar> bar;
      if (!options.losses) {
        bar.emplace(loader.size(), accelerate::concat("epoch ", epoch + 1, "/", options.epochs),
                    accelerate::ProgressBarOptions{.logger = accelerator.context().logger,
                                                   .shown = accelerator.is_main_process() && is_terminal()});
      }
      for (auto& batch : loader) {
        const auto micro_batch = accelerator.accumulate(model);
        optimizer.zero_grad();
        const auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
        accelerator.backward(loss);
        optimizer.step();
        loss_sum = loss_sum.to(loss.device()) + loss.detach();
        ++step;
        if (options.losses) {
          const auto mean = accelerator.reduce(loss.detach(), accelerate::ReduceOp::kMean).item<float>();
          char text[32];
          std::snprintf(text, sizeof(text), "%.6f", mean);
          accelerator.print("step ", step, " loss ", text);
        }
        if (bar) bar->advance();
        if (saves) accelerator.save_if_preempted();
      }
    }
    scheduler.step();
    if (saves) accelerator.save_state("", {.async = true});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double loss = accelerator.reduce(loss_sum, accelerate::ReduceOp::kMean).item<double>() /
                        static_cast<double>(std::max<int64_t>(step, 1));
    const double hit_rate = accuracy(accelerator, model, test_loader);
    char line[160];
    std::snprintf(line, sizeof(line), "epoch %ld/%ld  loss %.4f  test accuracy %.2f %%  %.0f samples/s",
                  static_cast<long>(epoch + 1), static_cast<long>(options.epochs), loss, 100 * hit_rate,
                  static_cast<double>(step * loader.total_batch_size()) / seconds);
    accelerator.print(line);
  }
  accelerator.end_training();
  if (!options.save.empty()) accelerator.print("saved ", accelerator.save_model(model, options.save));
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small convolutional network on MNIST, on as many ranks as the launcher started");
  app.add_option("--data", options.data, "mnist_5k.csv.gz")->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the images")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  app.add_option("--batch_size", options.batch_size, "images in a batch of each rank")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  app.add_option("--accumulation_steps", options.accumulation_steps,
                 "batches per optimizer step [1, or what the configuration says]")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of weights and order")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_option("--save", options.save, "folder for model.safetensors");
  app.add_option("--checkpoints", options.checkpoints,
                 "folder for a checkpoint after each epoch, from which the next start goes on");
  app.add_flag("--losses", options.losses, "print the loss of every step, averaged over the ranks");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    train(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
