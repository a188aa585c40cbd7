// A rank for tests of whole jobs: trains a small model, prints each step, and fails the way it is told to.
#include <sys/types.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "accelerate/accelerate.h"
#include "rank_program.h"

using accelerate::testing::say;

namespace {

struct Options {
  int64_t steps = 20;
  int64_t step_ms = 0;
  int64_t data_mb = 0;
  int64_t load_ms = 0;
  int rank = 1;
  int64_t fail_step = 5;
  std::string fail;  // throw, exit, return, break, skip, shape, dtype, or nothing
  std::string backend = "auto";
  int64_t timeout_ms = 60000;
  int64_t notice_ms = 60000;
  bool several = false;
};

// Proportional set size: private pages plus this process's share of the shared ones.
int64_t pss_kb() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    if (word != "Pss:") continue;
    int64_t value = 0;
    in >> value;
    return value;
  }
  return -1;
}

void measure_data(accelerate::Accelerator& accelerator, const Options& options) {
  const int64_t floats = options.data_mb * 1024 * 1024 / 4;
  accelerator.wait_for_everyone();
  const int64_t before = pss_kb();
  const auto data = accelerate::SharedMemoryDataset::create(accelerator, [&] {
    if (options.load_ms > 0) {
      say("loading");
      std::this_thread::sleep_for(std::chrono::milliseconds(options.load_ms));
    }
    return at::arange(floats, at::kFloat).reshape({-1, 1024});
  });
  const double sum = data.tensor("data").select(1, 0).sum(at::kDouble).item<double>();
  data.tensor("data").max();  // reads every page
  accelerator.wait_for_everyone();
  const int64_t after = pss_kb();
  const auto total = accelerator.reduce(at::full({1}, after - before, at::kLong));
  accelerator.wait_for_everyone();
  say(accelerate::concat("rank ", accelerator.process_index(), " data sum ", static_cast<int64_t>(sum)));
  accelerator.print("data_kb ", data.size_bytes() / 1024, " pss_kb ", total.item<int64_t>());
}

// Accelerators one after another, then two at once.
void make_several() {
  for (int i = 0; i < 3; ++i) {
    accelerate::Accelerator accelerator;
    accelerator.wait_for_everyone();
  }
  accelerate::Accelerator first;
  accelerate::Accelerator second;
  const auto sum = first.reduce(second.reduce(at::ones({1})));
  say(accelerate::concat("rank ", first.process_index(), " several ", sum.item<float>()));
}

bool train(const Options& options) {
  if (options.several) make_several();
  accelerate::Accelerator accelerator({.timeout = std::chrono::milliseconds(options.timeout_ms),
                                       .watchdog_notice = std::chrono::milliseconds(options.notice_ms),
                                       .backend = options.backend});
  const int rank = accelerator.process_index();
  say(accelerate::concat("rank ", rank, " of ", accelerator.num_processes(), " pid ", ::getpid()));
  if (options.data_mb > 0) measure_data(accelerator, options);
  torch::nn::Linear net(8, 8);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int64_t step = 0; step < options.steps; ++step) {
    if (rank == options.rank && step == options.fail_step) {
      if (options.fail == "throw") throw std::runtime_error("boom 42");
      if (options.fail == "exit") std::_Exit(3);
      if (options.fail == "return") return true;
      if (options.fail == "break") break;
      if (options.fail == "skip") continue;
    }
    if (step == options.fail_step && (options.fail == "shape" || options.fail == "dtype")) {
      const bool odd = rank == options.rank;
      accelerator.gather(at::ones({odd && options.fail == "shape" ? 3 : 2},
                                  odd && options.fail == "dtype" ? at::kDouble : at::kFloat));
    }
    optimizer.zero_grad();
    accelerator.backward(model->forward(at::ones({2, 8})).sum());
    optimizer.step();
    if (options.step_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(options.step_ms));
    say(accelerate::concat("rank ", rank, " step ", step));
  }
  if (options.fail == "break") accelerator.gather(at::ones({2}));  // what follows a loop: an evaluation
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("A rank for tests");
  app.add_option("--steps", options.steps);
  app.add_option("--step_ms", options.step_ms);
  app.add_option("--data_mb", options.data_mb);
  app.add_option("--load_ms", options.load_ms);
  app.add_option("--rank", options.rank);
  app.add_option("--fail_step", options.fail_step);
  app.add_option("--fail", options.fail);
  app.add_option("--backend", options.backend);
  app.add_option("--timeout_ms", options.timeout_ms);
  app.add_option("--notice_ms", options.notice_ms);
  app.add_flag("--several", options.several);
  CLI11_PARSE(app, argc, argv);
  return accelerate::testing::run_rank([&] { train(options); });
}
