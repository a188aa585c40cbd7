// What loading costs, one rank's figures as lines "figure NAME VALUE" that data_loading.py compares with
// Python's:
//
//   fetch    a batch of 60,000 x 784 floats and a label: shuffled, in order with a copy, in order as a view
//   memory   sum over the ranks of Pss with a data set of --data_mb
//   workers  items a second through a transform that takes 50 microseconds, by worker threads
//
// Every batch is checked before anything is timed. `fetch` alone fails when a shuffled epoch takes more than
// twice an in-order one.
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSamples = 60000;
constexpr int64_t kWidth = 784;
constexpr int64_t kPeriod = 1009;  // pixel j of image i is (784 i + j) modulo this
constexpr double kTransformMicroseconds = 50;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// CLOCK_PROCESS_CPUTIME_ID: of this process, all threads; CLOCK_THREAD_CPUTIME_ID: of this thread.
double cpu_microseconds(clockid_t clock = CLOCK_PROCESS_CPUTIME_ID) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string load_average() {
  std::string load = "?";
  std::getline(std::ifstream("/proc/loadavg"), load);
  return load;
}

// One write a line, so that the ranks' lines do not mix.
void print_figure(const std::string& name, double value) {
  const std::string line = accelerate::concat("figure ", name, " ", value, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, line.data(), line.size());
}

// ---- fetch ------------------------------------------------------------------------------------------------

std::pair<torch::Tensor, torch::Tensor> make_images(int64_t count) {
  return {torch::arange(count * kWidth).remainder(kPeriod).to(torch::kFloat).reshape({count, kWidth}),
          torch::arange(count)};
}

void check_rows(const accelerate::Batch& batch) {
  const auto want = batch.target.unsqueeze(1).mul(kWidth).add(torch::arange(kWidth)).remainder(kPeriod);
  if (!torch::equal(batch.data, want.to(torch::kFloat))) throw std::runtime_error("a batch has wrong rows");
}

// Every row is right, and every sample comes exactly once.
template <class Loader>
void check_epoch(accelerate::Accelerator& accelerator, Loader& loader) {
  std::vector<torch::Tensor> labels;
  for (auto& batch : loader) {
    check_rows(batch);
    labels.push_back(accelerator.gather_for_metrics(batch.target));
  }
  const auto seen = std::get<0>(torch::cat(labels).sort());
  if (!torch::equal(seen, torch::arange(kSamples)))
    throw std::runtime_error("samples are missing or repeated");
}

struct EpochTime {
  double first_us = 0;  // from the loop's start to its first batch
  double batch_us = 0;  // mean
  double cpu_us = 0;    // the same in CPU time, which other programs on the machine disturb less
};

template <class Loader>
EpochTime time_epoch(Loader& loader) {
  EpochTime out;
  int64_t batches = 0;
  const double cpu_start = cpu_microseconds();
  const auto start = Clock::now();
  for ([[maybe_unused]] auto& batch : loader) {
    if (batches++ == 0) out.first_us = microseconds_since(start);
  }
  out.batch_us = microseconds_since(start) / static_cast<double>(batches);
  out.cpu_us = (cpu_microseconds() - cpu_start) / static_cast<double>(batches);
  return out;
}

int run_fetch(int64_t batch_size, int rounds) {
  accelerate::Accelerator accelerator;
  const auto data =
      accelerate::SharedMemoryDataset::create(accelerator, [] { return make_images(kSamples); });
  auto [shuffled, in_order, views] = accelerator.prepare(
      accelerate::DataLoader(data, {.batch_size = batch_size, .shuffle = true, .seed = 1}),
      accelerate::DataLoader(data, {.batch_size = batch_size, .copy_batches = true}),
      accelerate::DataLoader(data, {.batch_size = batch_size}));
  check_epoch(accelerator, shuffled);
  check_epoch(accelerator, in_order);
  check_epoch(accelerator, views);

  std::vector<double> shuffled_us, shuffled_cpu_us, in_order_us, views_us, first_us, ratios;
  for (int round = 0; round < rounds; ++round) {
    accelerator.wait_for_everyone();
    const EpochTime random = time_epoch(shuffled);
    const EpochTime ordered = time_epoch(in_order);
    shuffled_us.push_back(random.batch_us);
    shuffled_cpu_us.push_back(random.cpu_us);
    first_us.push_back(random.first_us);
    in_order_us.push_back(ordered.batch_us);
    views_us.push_back(time_epoch(views).batch_us);
    ratios.push_back(random.cpu_us / ordered.cpu_us);
  }
  print_figure("shuffled_us", median(shuffled_us));
  print_figure("shuffled_cpu_us", median(shuffled_cpu_us));
  print_figure("in_order_us", median(in_order_us));
  print_figure("view_us", median(views_us));
  print_figure("first_us", median(first_us));
  print_figure("shuffled_over_in_order", median(ratios));
  accelerator.print("batches of ", batch_size, ": CPU time of a shuffled epoch over an in-order one ",
                    median(ratios), " (limit 2); median of ", rounds, " epochs each; load ", load_average());
  return median(ratios) <= 2 ? 0 : 1;
}

// ---- memory -----------------------------------------------------------------------------------------------

// Proportional set size of the whole process, in KiB.
int64_t pss_kb() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == "Pss:" && in >> value) return value;
  }
  throw std::runtime_error("/proc/self/smaps_rollup has no Pss");
}

// The same of the one mapping that holds `address`.
int64_t pss_kb_at(const void* address) {
  std::ifstream in("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    long value = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin <= wanted && wanted < end;
    if (inside && std::sscanf(line.c_str(), "Pss: %ld kB", &value) == 1) return value;
  }
  throw std::runtime_error("the data set is in no mapping");
}

int run_memory(int64_t data_mb) {
  accelerate::Accelerator accelerator;
  const int64_t floats = std::max<int64_t>(data_mb, 0) * 1024 * 1024 / 4 + 1024;
  const auto data = accelerate::SharedMemoryDataset::create(accelerator, [&] {
    return torch::arange(floats, torch::kFloat).reshape({-1, 1024});
  });
  const auto& all = data.tensor("data");
  // Reads every page, and shows that every rank sees the same.
  const float largest = all.max().item<float>();
  if (largest != static_cast<float>(floats - 1)) throw std::runtime_error("the data set is wrong");
  accelerator.wait_for_everyone();
  const int64_t process = pss_kb();
  const int64_t mapping = pss_kb_at(all.const_data_ptr());
  accelerator.wait_for_everyone();  // all pages are mapped by all ranks while they are counted
  print_figure("data_kb", static_cast<double>(data.size_bytes()) / 1024);
  print_figure("process_pss_kb", static_cast<double>(process));
  print_figure("mapping_pss_kb", static_cast<double>(mapping));
  return 0;
}

// ---- workers ----------------------------------------------------------------------------------------------

// Computes for 50 microseconds. By the thread's own clock, which stands still while other programs have the
// core.
struct Busy {
  accelerate::Batch operator()(accelerate::Batch item) const {
    const double end = cpu_microseconds(CLOCK_THREAD_CPUTIME_ID) + kTransformMicroseconds;
    while (cpu_microseconds(CLOCK_THREAD_CPUTIME_ID) < end) {
    }
    return item;
  }
};

int run_workers(int64_t num_workers, int rounds) {
  accelerate::Accelerator accelerator;
  constexpr int64_t kItems = 8000;
  const auto data = accelerate::SharedMemoryDataset::create(accelerator, [] { return make_images(kItems); });
  auto loader = accelerator.prepare(
      accelerate::DataLoader(accelerate::ItemDataset(data, Busy{}),
                             {.batch_size = 64, .shuffle = true, .num_workers = num_workers}));
  int64_t items = 0;
  for (auto& batch : loader) {
    check_rows(batch);
    items += batch.size();
  }
  if (items * accelerator.num_processes() < kItems) throw std::runtime_error("items are missing");
  std::vector<double> rates, first_us, cpu_us;
  for (int round = 0; round < rounds; ++round) {
    const double cpu_start = cpu_microseconds();
    const auto start = Clock::now();
    first_us.push_back(time_epoch(loader).first_us);
    rates.push_back(1e6 * static_cast<double>(items) / microseconds_since(start));
    cpu_us.push_back((cpu_microseconds() - cpu_start) / static_cast<double>(items));
  }
  print_figure("items_per_s", median(rates));
  print_figure("first_us", median(first_us));
  print_figure("cpu_us_per_item", median(cpu_us));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string what = "fetch";
  int64_t batch_size = 64;
  int64_t data_mb = 400;
  int64_t num_workers = 2;
  int rounds = 5;
  CLI::App app("What loading costs, as lines of figures; see data_loading.py");
  app.add_option("what", what)->check(CLI::IsMember({"fetch", "memory", "workers"}))->capture_default_str();
  app.add_option("--batch_size", batch_size)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--data_mb", data_mb)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--num_workers", num_workers)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    if (what == "fetch") return run_fetch(batch_size, rounds);
    return what == "memory" ? run_memory(data_mb) : run_workers(num_workers, rounds);
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
