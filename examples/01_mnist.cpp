// Trains a small convolutional network on 5,000 real MNIST images: 4,000 to train, 1,000 to test.
//
//   accel launch --cpu --num_processes 2 ./01_mnist --data mnist_5k.csv.gz
//
// The same binary runs alone, under torchrun and under mpirun. Equal total batches give equal results: one
// process with
// --batch_size 64 trains as two with --batch_size 32.
#include <torch/torch.h>
#include <unistd.h>
#include <zlib.h>

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

std::string read_gz(const std::string& path) {
  const auto file = std::unique_ptr<gzFile_s, int (*)(gzFile)>(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) {
    throw accelerate::DataError({.what = "opening " + path,
                                 .got = accelerate::errno_text(errno),
                                 .hint = "Pass the file with --data; third_party/setup.sh fetches it."});
  }
  std::string text;
  char buffer[1 << 16];
  int got = 0;
  while ((got = gzread(file.get(), buffer, sizeof(buffer))) > 0)
    text.append(buffer, static_cast<size_t>(got));
  if (got < 0) throw accelerate::DataError({.what = path + " is damaged or cut off"});
  return text;
}

// Rows of 784 pixels (0 to 255) and a label, as the file has them, sorted by digit.
accelerate::TensorDict load_mnist(const std::string& path) {
  constexpr int64_t kPixels = 28 * 28;
  const std::string text = read_gz(path);
  std::vector<float> values;
  values.reserve(text.size() / 2);
  const char* end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    char* next = nullptr;
    const float value = std::strtof(at, &next);
    if (next == at) {
      throw accelerate::DataError(
          {.what = path,
           .expected = "numbers",
           .got = "'" + std::string(at, std::min<size_t>(20, static_cast<size_t>(end - at))) + "'"});
    }
    values.push_back(value);
    at = next;
    while (at < end && (*at == ',' || *at == '\n' || *at == '\r')) ++at;
  }
  if (values.empty() || values.size() % (kPixels + 1) != 0) {
    throw accelerate::DataError({.what = path,
                                 .expected = "rows of 785 comma-separated numbers",
                                 .got = accelerate::concat(values.size(), " numbers")});
  }
  const auto count = static_cast<int64_t>(values.size()) / (kPixels + 1);
  const auto rows = torch::from_blob(values.data(), {count, kPixels + 1});
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

// A line that is rewritten in place; only on a terminal.
class ProgressBar {
 public:
  ProgressBar(bool shown, int64_t epoch, int64_t epochs, int64_t steps) : shown_(shown), steps_(steps) {
    title_ = accelerate::concat("epoch ", epoch, "/", epochs);
  }
  void update(int64_t step) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || (step < steps_ && now - last_ < std::chrono::milliseconds(100))) return;
    last_ = now;
    const auto filled = static_cast<size_t>(30 * step / std::max<int64_t>(steps_, 1));
    std::printf("\r%s [%s%s] %ld/%ld", title_.c_str(), std::string(filled, '#').c_str(),
                std::string(30 - filled, '.').c_str(), static_cast<long>(step), static_cast<long>(steps_));
    std::fflush(stdout);
  }
  ~ProgressBar() {
    if (!shown_) return;
    std::printf("\r\033[K");
    std::fflush(stdout);
  }

 private:
  bool shown_;
  int64_t steps_;
  std::string title_;
  std::chrono::steady_clock::time_point last_;
};

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
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = options.accumulation_steps});
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
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(
      net, adam,
      accelerate::DataLoader(train_set,
                             {.batch_size = options.batch_size, .shuffle = true, .drop_last = true}),
      accelerate::DataLoader(test_set, {.batch_size = 100}));

  accelerator.print(accelerator.num_processes(),
                    accelerator.num_processes() == 1 ? " rank on " : " ranks on ", accelerator.device(), " (",
                    accelerator.strategy().name(), "), batch ", loader.batch_size(), " a rank x ",
                    accelerator.num_processes(), " x ", accumulated,
                    " accumulated = ", loader.total_batch_size() * accumulated, " in all, ", train_set.size(),
                    " images to train, ", test_set.size(), " to test");

  const bool show_bar = !options.losses && accelerator.is_main_process() &&
                        (::isatty(STDOUT_FILENO) != 0 || std::getenv("ACCELERATE_TERMINAL") != nullptr);
  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    auto loss_sum = torch::zeros({});
    int64_t step = 0;
    {
      ProgressBar bar(show_bar, epoch, options.epochs, loader.size());
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
        bar.update(step);
      }
    }
    decay.step();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double loss = accelerator.reduce(loss_sum, accelerate::ReduceOp::kMean).item<double>() /
                        static_cast<double>(std::max<int64_t>(step, 1));
    const double hit_rate = accuracy(accelerator, model, test_loader);
    char line[160];
    std::snprintf(line, sizeof(line), "epoch %ld/%ld  loss %.4f  test accuracy %.2f %%  %.0f samples/s",
                  static_cast<long>(epoch), static_cast<long>(options.epochs), loss, 100 * hit_rate,
                  static_cast<double>(step * loader.total_batch_size()) / seconds);
    accelerator.print(line);
  }
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
