// All-reduce through shared memory against Gloo, and a training step on each, with 2 and 4 real processes on
// this machine. Both run in turn in the same processes, results are checked first, and ratios are medians of
// rounds. Usage: bench_shm_allreduce [ranks] (default: 2 and 4)
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/comm/communicator.h"

namespace {

using accelerate::Communicator;

struct Size {
  const char* name;
  int64_t floats;
  int repeats;
  double limit_2;  // of shm / gloo with 2 ranks
  double limit_4;
};

constexpr Size kSizes[] = {{"4 KiB", 1024, 40, 1.0 / 20, 1.0 / 20},
                           {"64 KiB", 16 * 1024, 40, 1.0 / 20, 1.0 / 20},
                           {"1 MiB", 256 * 1024, 10, 1.0 / 10, 1.0 / 8},
                           {"25 MiB", 25 * 256 * 1024, 1, 1.0 / 4, 1.0 / 2}};
constexpr int kRounds = 15;

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::shared_ptr<Communicator> communicator(const accelerate::Topology& topology, const std::string& backend) {
  accelerate::Logger logger(topology.rank, accelerate::LogLevel::kWarning);
  return accelerate::make_communicator(topology, {.backend = backend, .timeout = std::chrono::seconds(60)},
                                       logger);
}

double time_all_reduce(Communicator& group, at::Tensor& tensor, int repeats) {
  group.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) group.all_reduce(tensor);
  group.barrier();
  return microseconds_since(start) / repeats;
}

bool check(Communicator& group, at::Tensor& tensor) {
  tensor.copy_(torch::arange(tensor.numel()).remainder(1000) + group.rank());
  group.all_reduce(tensor);
  const int size = group.size();
  const auto want = torch::arange(tensor.numel()).remainder(1000) * size + size * (size - 1) / 2;
  return tensor.equal(want.to(torch::kFloat));
}

bool all_reduce_bench(Communicator& gloo, Communicator& shm) {
  bool good = true;
  for (const Size& size : kSizes) {
    at::Tensor ordinary = torch::zeros({size.floats});
    at::Tensor bucket;
    {
      const auto memory = shm.bucket_memory(static_cast<size_t>(size.floats) * 4);
      bucket = torch::zeros({size.floats});
    }
    at::Tensor scratch = torch::zeros({size.floats});
    if (!check(gloo, ordinary) || !check(shm, ordinary) || !check(shm, bucket)) {
      std::printf("rank %d: wrong sums of %s; nothing was timed\n", shm.rank(), size.name);
      return false;
    }
    for (at::Tensor* tensor : {&ordinary, &bucket}) tensor->zero_();
    std::vector<double> theirs, ours, ratios, ordinary_times, ordinary_ratios;
    for (int round = 0; round < kRounds; ++round) {
      theirs.push_back(time_all_reduce(gloo, ordinary, size.repeats));
      ours.push_back(time_all_reduce(shm, bucket, size.repeats));
      ordinary_times.push_back(time_all_reduce(shm, ordinary, size.repeats));
      ratios.push_back(ours.back() / theirs.back());
      ordinary_ratios.push_back(ordinary_times.back() / theirs.back());
    }
    const double limit = shm.size() <= 2 ? size.limit_2 : size.limit_4;
    const bool met = median(ratios) <= limit;
    good = good && met;
    if (shm.rank() != 0) continue;
    std::printf(
        "all_reduce %-6s, %d ranks: gloo %9.1f us, shm in a bucket %8.1f us = 1/%.1f (limit 1/%.0f: %s), shm "
        "from "
        "ordinary memory %8.1f us = 1/%.1f\n",
        size.name, shm.size(), median(theirs), median(ours), 1 / median(ratios), 1 / limit,
        met ? "met" : "missed", median(ordinary_times), 1 / median(ordinary_ratios));
  }
  return good;
}

// One model and optimizer on one back end.
struct Trainer {
  Trainer(const accelerate::Topology& topology, std::shared_ptr<Communicator> group, int64_t width)
      : accelerator(options(topology, std::move(group))) {
    torch::manual_seed(1);
    net = torch::nn::Sequential(
        torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, width),
        torch::nn::ReLU(), torch::nn::Linear(width, width), torch::nn::ReLU(),
        torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, 1));
    sgd = std::make_unique<torch::optim::SGD>(net->parameters(), 1e-3);
  }

  static accelerate::AcceleratorOptions options(const accelerate::Topology& topology,
                                                std::shared_ptr<Communicator> group) {
    accelerate::AcceleratorOptions options;
    options.environment = accelerate::EnvVars();
    options.topology = topology;
    options.communicator = std::move(group);
    return options;
  }

  accelerate::Accelerator accelerator;
  torch::nn::Sequential net{nullptr};
  std::unique_ptr<torch::optim::SGD> sgd;
};

bool step_bench(const accelerate::Topology& topology, const std::shared_ptr<Communicator>& gloo,
                const std::shared_ptr<Communicator>& shm) {
  for (const int64_t width : {64, 256, 1024}) {
    Trainer a(topology, gloo, width);
    Trainer b(topology, shm, width);
    auto [model_a, sgd_a] = a.accelerator.prepare(a.net, *a.sgd);
    auto [model_b, sgd_b] = b.accelerator.prepare(b.net, *b.sgd);
    torch::manual_seed(100 + topology.rank);
    const auto x = torch::randn({32, width});
    const auto y = torch::randn({32, 1});
    const auto step = [&](Trainer& trainer, auto& model, auto& optimizer) {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(model->forward(x), y);
      trainer.accelerator.backward(loss);
      optimizer.step();
      return loss.template item<double>();
    };
    for (int i = 0; i < 10; ++i) {
      const double loss_a = step(a, model_a, sgd_a);
      const double loss_b = step(b, model_b, sgd_b);
      if (std::abs(loss_a - loss_b) > 1e-5 * std::abs(loss_a)) {
        std::printf("rank %d: losses differ in step %d (%.9g, %.9g)\n", topology.rank, i, loss_a, loss_b);
        return false;
      }
    }
    const int steps = width > 256 ? 5 : 20;
    std::vector<double> theirs, ours, ratios;
    const auto time = [&](Communicator& group, const auto& run) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < steps; ++i) run();
      group.barrier();
      return microseconds_since(start) / steps;
    };
    for (int round = 0; round < kRounds; ++round) {
      theirs.push_back(time(*gloo, [&] { step(a, model_a, sgd_a); }));
      ours.push_back(time(*shm, [&] { step(b, model_b, sgd_b); }));
      ratios.push_back(ours.back() / theirs.back());
    }
    if (topology.rank == 0) {
      std::printf("step of a five-layer MLP of width %4ld, %d ranks: gloo %8.1f us, shm %8.1f us = %.2f\n",
                  static_cast<long>(width), topology.world_size, median(theirs), median(ours),
                  median(ratios));
    }
  }
  return true;
}

int rank_main(int rank, int size, const std::string& job) {
  try {
    torch::set_num_threads(1);
    const accelerate::Topology topology{.launcher = "bench",
                                        .rank = rank,
                                        .world_size = size,
                                        .local_rank = rank,
                                        .local_world_size = size,
                                        .job_id = job};
    const auto gloo = communicator(topology, "gloo");
    const auto shm = communicator(topology, "shm");
    const bool fast = all_reduce_bench(*gloo, *shm);
    const bool good = step_bench(topology, gloo, shm) && fast;
    std::fflush(stdout);
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("rank %d: %s\n", rank, error.what());
    std::fflush(stdout);
    return accelerate::exit_code(error);
  }
}

// Forks before torch has any threads.
bool run_job(int size) {
  const std::string job = "bench-" + std::to_string(::getpid()) + "-" + std::to_string(size);
  std::vector<pid_t> ranks;
  std::fflush(stdout);
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) std::_Exit(rank_main(rank, size, job));
    ranks.push_back(child);
  }
  bool good = true;
  for (const pid_t child : ranks) {
    int status = 0;
    ::waitpid(child, &status, 0);
    good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return good;
}

std::string load() {
  std::string text = "?";
  std::ifstream in("/proc/loadavg");
  std::getline(in, text);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  bool good = true;
  std::vector<int> sizes = {2, 4};
  if (argc > 1) sizes = {std::atoi(argv[1])};
  for (const int size : sizes) {
    std::printf("load before: %s\n", load().c_str());
    good = run_job(size) && good;
  }
  std::printf("load after: %s\n", load().c_str());
  return good ? 0 : 1;
}
