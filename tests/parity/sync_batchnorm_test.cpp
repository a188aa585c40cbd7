// Synchronised batch normalisation equals BatchNorm over the joined batch. sync_batchnorm.safetensors was
// written by sync_batchnorm_gen.py beside it.
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

namespace {

const TensorDict& golden() {
  static const TensorDict data =
      load_safetensors(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/sync_batchnorm.safetensors");
  return data;
}

// The layers as named members, which nobody can exchange from outside.
template <class First, class Norm>
struct MembersImpl : torch::nn::Module {
  MembersImpl(First first_layer, Norm norm_layer, int64_t size)
      : first(std::move(first_layer)), norm(std::move(norm_layer)), last(size, 2) {
    register_module("0", first);
    register_module("1", norm);
    register_module("4", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(norm(first(x))).flatten(1)); }
  First first;
  Norm norm;
  torch::nn::Linear last;
};

template <class First, class Norm>
auto members(First first, Norm norm, int64_t size) {
  return std::make_shared<MembersImpl<First, Norm>>(first, norm, size);
}

template <class First, class Norm>
auto sequence(First first, Norm norm, int64_t size) {
  return torch::nn::Sequential(first, norm, torch::nn::Tanh(), torch::nn::Flatten(),
                               torch::nn::Linear(size, 2));
}

template <class Model>
void train(const std::string& name, int world, const Model& make) {
  const std::string key = concat(name, '.', world, '.');
  const std::vector<int64_t> rows = world == 2 ? std::vector<int64_t>{3, 5} : std::vector<int64_t>{2, 6, 3};
  const auto want = [&](const std::string& what) { return golden().at(key + what); };
  const auto near = [](const torch::Tensor& a, const torch::Tensor& b) {
    return a.sizes() == b.sizes() && a.to(torch::kDouble).allclose(b.to(torch::kDouble), 1e-5, 1e-6);
  };
  AcceleratorOptions options;
  options.ddp.sync_batchnorm = true;
  test::run_ranks(
      world,
      [&](Accelerator& accelerator) {
        auto net = make();
        {
          const torch::NoGradGuard no_grad;
          for (auto& entry : net->named_parameters()) entry.value().copy_(want("init." + entry.key()));
        }
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const int rank = accelerator.process_index();
        const auto own = [&](const torch::Tensor& all) {
          return all.split_with_sizes(rows)[static_cast<size_t>(rank)];
        };
        for (int64_t step = 0; step < want("x").size(0); ++step) {
          optimizer.zero_grad();
          const auto loss = torch::mse_loss(model->forward(own(want("x")[step])), own(want("y")[step]));
          accelerator.backward(loss);
          require(std::abs(loss.template item<double>() - want("loss")[rank][step].template item<double>()) <
                      1e-5,
                  concat(key, "loss of step ", step));
          if (step == 0) {
            for (const auto& entry : net->named_parameters()) {
              require(near(entry.value().grad(), want("grad." + entry.key())),
                      concat(key, "gradient of ", entry.key()));
            }
          }
          optimizer.step();
        }
        for (const auto& entry : net->named_parameters()) {
          require(near(entry.value(), want("final." + entry.key())), concat(key, entry.key()));
        }
        size_t buffers = 0;
        for (const auto& entry : net->named_buffers()) {
          if (!entry.value().defined()) continue;
          require(near(entry.value(), want("final." + entry.key())), concat(key, entry.key()));
          ++buffers;
        }
        require((buffers == 0) == (name == "not_tracking" || name == "stateless"), "buffers");
        if (buffers == 0) return;
        model->eval();
        // Not collective: each rank by itself.
        if (rank == 0) require(near(model->forward(want("x")[0]), want("eval")), concat(key, "eval"));
      },
      options);
}

// In a Sequential and as named members.
template <class First, class Norm>
void train_all(const std::string& name, int64_t size, const First& first, const Norm& norm) {
  for (const int world : {2, 3}) {
    train(name, world, [&] { return sequence(first(), norm(), size); });
    train(name, world, [&] { return members(first(), norm(), size); });
  }
}

using torch::nn::BatchNormOptions;

torch::nn::Linear linear() {
  return torch::nn::Linear(4, 6);
}
torch::nn::Conv2d convolution() {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 2));
}

}  // namespace

TEST_CASE(
    "BatchNorm1d, 2d and 3d over ranks with different batch sizes equal BatchNorm over the joined batch") {
  train_all("bn1d", 6, linear, [] { return torch::nn::BatchNorm1d(6); });
  train_all("bn2d", 24, convolution, [] { return torch::nn::BatchNorm2d(6); });
  train_all(
      "bn3d", 48, [] { return torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 6, 2)); },
      [] { return torch::nn::BatchNorm3d(6); });
}

TEST_CASE(
    "so do layers with other momentum, without weights, without running statistics, and without either") {
  train_all("cumulative", 24, convolution,
            [] { return torch::nn::BatchNorm2d(BatchNormOptions(6).momentum(std::nullopt)); });
  train_all("momentum", 6, linear,
            [] { return torch::nn::BatchNorm1d(BatchNormOptions(6).momentum(0.3).eps(1e-2)); });
  train_all("not_affine", 24, convolution,
            [] { return torch::nn::BatchNorm2d(BatchNormOptions(6).affine(false)); });
  train_all("not_tracking", 24, convolution,
            [] { return torch::nn::BatchNorm2d(BatchNormOptions(6).track_running_stats(false)); });
  train_all("stateless", 6, linear, [] {
    return torch::nn::BatchNorm1d(BatchNormOptions(6).affine(false).track_running_stats(false));
  });
}
