// How long save_state(async) keeps the training thread, against one memcpy of the local state, and how much
// memory saving and loading take. The state is a stack of weights and AdamW's moments.
//   bench_save_state [--gb 0.5] [--rounds 7]     stall over memcpy, median of the rounds
//   bench_save_state --memory save|load DIR --gb 5   peak of resident memory over the size of the state
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

using namespace accelerate;

namespace {

constexpr double kStallLimit = 1.3;
constexpr double kMemoryLimit = 1.2;
constexpr int64_t kWidth = 2048;

struct Stack : torch::nn::Module {
  explicit Stack(double gb) {
    // A weight and its two moments.
    const auto count = static_cast<int64_t>(std::ceil(gb * 1e9 / (3.0 * kWidth * kWidth * 4)));
    for (int64_t i = 0; i < count; ++i)
      weights.push_back(register_parameter(concat("w", i), torch::full({kWidth, kWidth}, 0.5 + 0.001 * i)));
  }
  double bytes() const { return 3.0 * kWidth * kWidth * 4 * static_cast<double>(weights.size()); }
  std::vector<at::Tensor> weights;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Kilobytes, as /proc/self/status has it.
double memory_kb(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1));
  }
  throw std::runtime_error("no " + name);
}

void step(torch::optim::Optimizer& optimizer, Stack& model) {
  for (at::Tensor& weight : model.weights) weight.mutable_grad() = torch::full_like(weight, 0.25);
  optimizer.step();
  optimizer.zero_grad();
}

int stall(double gb, int rounds) {
  std::string folder = (std::filesystem::temp_directory_path() / "accelerate-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("mkdtemp");
  Accelerator accelerator;
  auto model = std::make_shared<Stack>(gb);
  torch::optim::AdamW adam(model->parameters());
  auto [prepared, optimizer] = accelerator.prepare(model, adam);
  step(adam, *model);
  const std::string path = folder + "/state";
  std::vector<at::Tensor> live;
  for (const auto& weight : model->weights) live.push_back(weight.detach());
  for (const auto& [key, state] : adam.state()) {
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*state);
    live.push_back(moments.exp_avg());
    live.push_back(moments.exp_avg_sq());
  }
  const size_t each = static_cast<size_t>(kWidth * kWidth) * 4;
  std::vector<char> copy(each * live.size());
  std::vector<double> ratios;
  std::vector<double> stalls;
  for (int round = 0; round <= rounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < live.size(); ++i)
      std::memcpy(copy.data() + i * each, live[i].const_data_ptr(), each);
    const double memcpy_s = seconds_since(start);
    start = std::chrono::steady_clock::now();
    accelerator.save_state(path, {.async = true});
    const double stall_s = seconds_since(start);
    const double expected = model->weights[0].sum().item<double>();
    step(adam, *model);  // the training goes on meanwhile
    accelerator.wait_for_save();
    if (round == 0) {
      // The first round warms both buffers up; what it wrote is checked.
      const double after = model->weights[0].sum().item<double>();
      accelerator.load_state(path);
      if (model->weights[0].sum().item<double>() != expected || after == expected)
        throw std::runtime_error("the checkpoint does not hold the state of its moment");
      continue;
    }
    ratios.push_back(stall_s / memcpy_s);
    stalls.push_back(stall_s);
    std::printf("round %d: memcpy %.4f s, save_state(async) %.4f s, ratio %.3f\n", round, memcpy_s, stall_s,
                ratios.back());
  }
  std::filesystem::remove_all(folder);
  std::printf("stall_s %.5f\n", median(stalls));
  std::printf("state of %.2f GB: stall over memcpy, median of %d: %.3f (limit %.1f)\n", model->bytes() / 1e9,
              rounds, median(ratios), kStallLimit);
  return median(ratios) <= kStallLimit ? 0 : 1;
}

int memory(const std::string& what, const std::string& folder, double gb) {
  Accelerator accelerator;
  auto model = std::make_shared<Stack>(gb);
  torch::optim::AdamW adam(model->parameters());
  auto [prepared, optimizer] = accelerator.prepare(model, adam);
  if (what == "save") {
    step(adam, *model);
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here, without the gradients
    accelerator.save_state(folder + "/state");
  } else {
    accelerator.load_state(folder + "/state");
    const auto& moments = static_cast<const torch::optim::AdamWParamState&>(*adam.state().begin()->second);
    if (adam.state().size() != model->weights.size() || moments.step() != 1)
      throw std::runtime_error("the state is not complete");
  }
  const double peak = memory_kb("VmHWM") * 1024;
  const double ratio = peak / model->bytes();
  std::printf("%s of %.2f GB: peak of resident memory %.2f GB, ratio %.3f (limit %.1f)\n", what.c_str(),
              model->bytes() / 1e9, peak / 1e9, ratio, kMemoryLimit);
  return ratio <= kMemoryLimit ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  double gb = 0.5;
  int rounds = 7;
  std::vector<std::string> what;
  CLI::App app(
      "Stall of an asynchronous save over one memcpy of the state; peak memory of saving and loading");
  app.add_option("--gb", gb, "size of the state")->check(CLI::Range(0.01, 100.0))->capture_default_str();
  app.add_option("--rounds", rounds, "rounds")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--memory", what, "save or load, and the folder")->expected(2);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return what.empty() ? stall(gb, rounds) : memory(what[0], what[1], gb);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error_message(error).c_str());
    return accelerate::exit_code(error);
  }
}
