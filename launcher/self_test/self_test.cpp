// What `accel test` starts as ranks: checks what training rests on, for any number of ranks. The first check
// that fails on a rank ends that rank with a message; the launcher then stops the others.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "accelerate/accelerator.h"
#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/core/error.h"
#include "accelerate/data/shared_memory_dataset.h"
#include "accelerate/seed.h"

namespace {

using accelerate::Accelerator;
using accelerate::concat;
using accelerate::ReduceOp;

// A number that no number of ranks or batch size divides.
constexpr int64_t kSamples = 101;
constexpr int64_t kLocalBatch = 4;
constexpr int kSteps = 3;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x).tanh()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Net);

// One check, under the name by which a failure is reported.
class Check {
 public:
  Check(Accelerator& accelerator, std::string name) : accelerator_(accelerator), name_(std::move(name)) {
    // SELF_TEST_BREAK=name:rank makes a check fail, to test what is said then.
    const char* broken = std::getenv("SELF_TEST_BREAK");
    expect(broken == nullptr || broken != concat(name_, ":", accelerator_.process_index()),
           "no SELF_TEST_BREAK", "one");
  }

  template <class Expected, class Got>
  void expect(bool holds, const Expected& expected, const Got& got) const {
    if (holds) return;
    throw accelerate::Error({.what = concat("check '", name_, "' failed"),
                             .expected = concat(expected),
                             .got = concat(got),
                             .rank = accelerator_.process_index()});
  }
  template <class Value>
  void equal(const Value& expected, const Value& got) const {
    expect(expected == got, expected, got);
  }
  void equal(const at::Tensor& expected, const at::Tensor& got) const {
    const bool same = expected.sizes() == got.sizes() && at::allclose(expected, got, 1e-4, 1e-6);
    expect(same, expected.flatten(), got.flatten());
  }
  void passed() const { accelerator_.print(name_, ": ok"); }

 private:
  Accelerator& accelerator_;
  std::string name_;
};

at::Tensor number(const Accelerator& accelerator, double value, int64_t count = 1) {
  return at::full({count}, value, at::TensorOptions().dtype(at::kFloat).device(accelerator.device()));
}

void check_start(Accelerator& accelerator) {
  const Check check(accelerator, "start");
  const auto ranks = accelerator.gather(number(accelerator, accelerator.process_index()));
  check.equal(at::arange(accelerator.num_processes(), ranks.options()), ranks);
  check.passed();
}

void check_collectives(Accelerator& accelerator) {
  const Check check(accelerator, "collectives");
  const int ranks = accelerator.num_processes();
  const int rank = accelerator.process_index();
  // 1 to N: the sum and the mean are known.
  const double sum = ranks * (ranks + 1) / 2.0;
  for (const int64_t count : {int64_t{1}, int64_t{1003}, int64_t{1} << 18}) {
    const auto mine = number(accelerator, rank + 1, count);
    check.equal(number(accelerator, sum, count), accelerator.reduce(mine));
    check.equal(number(accelerator, sum / ranks, count), accelerator.reduce(mine, ReduceOp::kMean));
    check.equal(number(accelerator, ranks, count), accelerator.reduce(mine, ReduceOp::kMax));
    check.equal(number(accelerator, ranks, count), accelerator.broadcast(mine.clone(), ranks - 1));
    const auto all = accelerator.gather(mine).reshape({ranks, count});
    check.equal(at::arange(1, ranks + 1, all.options()), all.select(1, count - 1));
  }
  accelerator.wait_for_everyone();
  check.passed();
}

// Over all ranks, each sample of an epoch comes exactly once, and the next epoch has another order.
void check_sampling(Accelerator& accelerator) {
  const Check check(accelerator, "sampling");
  const auto data = accelerate::SharedMemoryDataset::create(
      accelerator, [] { return at::arange(kSamples, at::TensorOptions().dtype(at::kLong)); });
  auto loader =
      accelerator.prepare(accelerate::DataLoader(data, {.batch_size = kLocalBatch, .shuffle = true}));
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto& seen = epochs.emplace_back();
    for (auto& batch : loader) {
      const auto all = accelerator.gather_for_metrics(batch.data).cpu();
      seen.insert(seen.end(), all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
    }
    auto sorted = seen;
    std::sort(sorted.begin(), sorted.end());
    std::vector<int64_t> every(kSamples);
    std::iota(every.begin(), every.end(), 0);
    check.expect(sorted == every, "each of 101 samples once",
                 concat(seen.size(), " samples, or not each once"));
  }
  check.expect(epochs[0] != epochs[1], "another order in the second epoch", "the same");
  check.passed();
}

// Training on parts of a batch gives the weights that one process gets from the whole batch.
void check_training(Accelerator& accelerator) {
  const Check check(accelerator, "training");
  accelerate::set_seed(7);
  Net net;
  const auto whole = at::randn({kLocalBatch * accelerator.num_processes(), 8});
  accelerate::set_seed(7);
  Net alone;
  torch::optim::SGD plain(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(
      net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  const auto part =
      whole.narrow(0, kLocalBatch * accelerator.process_index(), kLocalBatch).to(accelerator.device());
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    alone->forward(whole).pow(2).mean().backward();
    plain.step();
    optimizer.zero_grad();
    accelerator.backward(model->forward(part).pow(2).mean());
    optimizer.step();
  }
  const auto expected = alone->parameters();
  const auto trained = model->parameters();
  for (size_t i = 0; i < expected.size(); ++i) check.equal(expected[i].detach(), trained[i].detach().cpu());
  check.passed();
}

// A folder of the main process, removed at the end.
class MainFolder {
 public:
  explicit MainFolder(const Accelerator& accelerator) {
    path_ = (std::filesystem::temp_directory_path() / "accel-self-test-XXXXXX").string();
    if (!accelerator.is_main_process()) return;
    if (::mkdtemp(path_.data()) == nullptr) {
      throw accelerate::CheckpointError(
          {.what = "making a folder in " + path_, .got = accelerate::errno_text(errno)});
    }
    remove_ = true;
  }
  ~MainFolder() {
    std::error_code ignored;
    if (remove_) std::filesystem::remove_all(path_, ignored);
  }
  MainFolder(const MainFolder&) = delete;
  MainFolder& operator=(const MainFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool remove_ = false;
};

void check_saving(Accelerator& accelerator) {
  const Check check(accelerator, "saving");
  accelerate::set_seed(11);
  Net net;
  auto model = accelerator.prepare(net);
  const MainFolder folder(accelerator);
  const std::string path = accelerator.save_model(model, folder.path());
  if (accelerator.is_main_process()) {
    const auto stored = accelerate::load_safetensors(path);
    const auto named = model->named_parameters();
    check.equal(named.size(), stored.size());
    for (const auto& parameter : named) {
      const auto found = stored.find(parameter.key());
      check.expect(found != stored.end(), parameter.key(), "no such tensor in the file");
      check.equal(parameter.value().detach().cpu(), found->second);
    }
  }
  accelerator.wait_for_everyone();
  check.passed();
}

}  // namespace

int main() {
  try {
    Accelerator accelerator({.timeout = std::chrono::minutes(2)});
    accelerator.print(accelerator.num_processes(),
                      accelerator.num_processes() == 1 ? " rank on " : " ranks on ", accelerator.device(),
                      ", backend ", accelerator.communicator().backend_name());
    check_start(accelerator);
    check_collectives(accelerator);
    check_sampling(accelerator);
    check_training(accelerator);
    check_saving(accelerator);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
