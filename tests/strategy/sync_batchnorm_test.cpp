#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

namespace {

AcceleratorOptions with_sync() {
  AcceleratorOptions options;
  options.ddp.sync_batchnorm = true;
  return options;
}

torch::Tensor numbers(int64_t begin, std::vector<int64_t> sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(begin, begin + count).to(torch::kFloat)).reshape(sizes);
}

bool near(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.allclose(b, 1e-4, 1e-5);
}

// What plain BatchNorm gives on the ranks' inputs together; as well its running mean.
std::pair<torch::Tensor, torch::Tensor> joined(const std::vector<torch::Tensor>& inputs) {
  torch::nn::BatchNorm1d norm(inputs[0].size(1));
  const torch::Tensor output = norm(torch::cat(inputs)).detach();
  return {output, norm->running_mean};
}

struct Inner : torch::nn::Module {
  Inner() { register_module("norm", norm); }
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm{3};
};

struct Deep : torch::nn::Module {
  Deep() {
    register_module("list", list);
    register_module("block", block);
    list->push_back(torch::nn::BatchNorm1d(3));
    block->push_back(std::make_shared<Inner>());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return block->forward(list->at<torch::nn::BatchNorm1dImpl>(0).forward(x));
  }
  torch::nn::ModuleList list;
  torch::nn::Sequential block;
};

}  // namespace

TEST_CASE("layers in ModuleList and nested Sequential see all ranks, also in a forward past the handle") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        auto net = std::make_shared<Deep>();
        auto model = accelerator.prepare(net);
        const int rank = accelerator.process_index();
        const auto inputs = std::vector{numbers(0, {4, 3}), 3 * numbers(50, {2, 3})};
        const auto first = joined(inputs).first.split_with_sizes({4, 2});
        const auto want = joined({first[0], first[1]}).first.split_with_sizes({4, 2});
        const auto here = static_cast<size_t>(rank);
        require(near(model->forward(inputs[here]), want[here]), "through the handle");
        require(near(net->forward(inputs[here]), want[here]), "past the handle");
        const torch::NoGradGuard no_grad;
        require(near(model->forward(inputs[here]), want[here]), "without gradients");
        const torch::InferenceMode inference;
        require(near(net->forward(inputs[here]), want[here]), "in inference mode");
      },
      with_sync());
}

TEST_CASE("without the option, and after the models are gone, layers see their own rank only") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    const torch::Tensor input = numbers(accelerator.process_index() * 50, {4, 3});
    const torch::Tensor alone = joined({input}).first;
    torch::nn::BatchNorm1d norm(3);
    auto model = accelerator.prepare(norm);
    require(near(model->forward(input), alone), "off");
    {
      const auto converted = convert_sync_batchnorm(*norm, accelerator.context().communicator);
      require(converted->layers() == 1, "one layer");
      require(!near(norm(input), alone), "on");
    }
    require(near(norm(input), alone), "off again");
  });
}

TEST_CASE("a layer without weights and running statistics is itself again after the conversion") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    const torch::Tensor input = numbers(accelerator.process_index() * 50, {4, 3});
    torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false));
    const torch::Tensor alone = joined({input}).first;
    {
      const auto converted = convert_sync_batchnorm(*norm, accelerator.context().communicator);
      require(!near(norm(input), alone), "on");
      norm->eval();
      require(near(norm(input), alone), "eval stays on this rank");
      norm->train();
      require(norm->buffers().empty() || !norm->buffers()[0].defined(), "no buffers are added");
    }
    require(!norm->running_mean.defined() && !norm->running_var.defined(), "marks are gone");
    require(near(norm(input), alone), "off");
  });
}

TEST_CASE("InstanceNorm, functional batch_norm and GroupNorm are left alone") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::InstanceNorm1d instance(
            torch::nn::InstanceNorm1dOptions(3).affine(true).track_running_stats(true));
        auto model = accelerator.prepare(instance);
        if (!accelerator.is_main_process()) return;  // would wait in vain if it were collective
        model->forward(numbers(0, {2, 3, 4}));
        torch::nn::functional::batch_norm(numbers(0, {4, 3}), torch::zeros(3), torch::ones(3),
                                          torch::nn::functional::BatchNormFuncOptions().training(true));
      },
      with_sync());
}

TEST_CASE("a rank without rows, frozen weights, and inputs that need no gradient") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::BatchNorm1d norm(3);
        torch::nn::Sequential net(norm, torch::nn::Linear(3, 1));
        norm->weight.requires_grad_(false);
        auto model = accelerator.prepare(net);
        const auto [want, mean] = joined({numbers(0, {4, 3})});
        const bool empty = !accelerator.is_main_process();
        const torch::Tensor input = empty ? torch::empty({0, 3}) : numbers(0, {4, 3});
        const torch::Tensor factors = torch::arange(4).to(torch::kFloat).view({4, 1});
        accelerator.backward((model->forward(input) * factors.slice(0, 0, input.size(0))).sum());
        require(near(norm->running_mean, mean), "running mean on both ranks");
        require(!norm->weight.grad().defined(), "frozen");
        // The rank without rows adds zeros: half of the other's.
        const torch::Tensor linear = net->parameters()[2];
        require(near(linear.grad(), (want * factors).sum(0, true) / 2), "the layer after it");
      },
      with_sync());
}

TEST_CASE("a layer whose tensors were exchanged is found again through the handle") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(3).affine(false));
        torch::nn::Sequential net(torch::nn::Linear(3, 3), norm);
        auto model = accelerator.prepare(net);
        norm->running_mean = torch::zeros(3);
        const torch::Tensor output = model->forward(accelerator.process_index() * 5 + numbers(0, {4, 3}));
        require(output.mean(0).abs().max().item<float>() > 0.1F, "not normalised by itself");
      },
      with_sync());
}

TEST_CASE("half-precision inputs are normalised in float32 and come out as they went in") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::BatchNorm1d norm(3);
        auto model = accelerator.prepare(norm);
        const auto inputs = std::vector{numbers(0, {4, 3}), numbers(50, {4, 3})};
        const auto here = static_cast<size_t>(accelerator.process_index());
        const torch::Tensor input = inputs[here].to(torch::kBFloat16).requires_grad_();
        const torch::Tensor output = model->forward(input);
        require(output.scalar_type() == torch::kBFloat16, "dtype");
        require(output.to(torch::kFloat).allclose(joined(inputs).first.split(4)[here], 0, 3e-2), "values");
        accelerator.backward(output.to(torch::kFloat).pow(2).sum());
        require(input.grad().scalar_type() == torch::kBFloat16, "dtype of the gradient");
      },
      with_sync());
}

TEST_CASE("uneven inputs and second derivatives are refused in words") {
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
        auto model = accelerator.prepare(net);
        test::require_contains(
            test::error_of<ConfigError>([&] { accelerator.join_uneven_inputs([] {}, {}, model); }),
            "sync_batchnorm (DdpOptions) with join_uneven_inputs");
        const torch::Tensor input = numbers(0, {4, 3}).requires_grad_();
        test::require_contains(test::error_of<std::exception>([&] {
                                 torch::autograd::grad({net->forward(input).pow(2).sum()}, {input}, {}, true,
                                                       /*create_graph=*/true);
                               }),
                               "second derivatives (create_graph)");
      },
      with_sync());
}

TEST_CASE("with one rank nothing changes") {
  test::run_ranks(
      1,
      [](Accelerator& accelerator) {
        torch::nn::BatchNorm1d norm(3);
        auto model = accelerator.prepare(norm);
        require(near(model->forward(numbers(0, {4, 3})), joined({numbers(0, {4, 3})}).first), "plain");
        require(convert_sync_batchnorm(*norm, accelerator.context().communicator)->layers() == 0, "none");
      },
      with_sync());
}
