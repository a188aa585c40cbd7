// Clearing gradients that are views of DDP's buckets.
#include "optim_test_support.h"
#include "support/checks.h"
#include "support/thread_ranks.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

// Equal in every call; the process's generator, which all rank threads share, could not give that.
torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : net->parameters()) {
    parameter.copy_(
        (torch::arange(parameter.numel()).to(torch::kFloat) / 16).sin().reshape(parameter.sizes()));
  }
  return net;
}

// Weights after six micro-batches; optionally with the gradients checked to be views of the buckets.
at::Tensor train(Accelerator& accelerator, bool views, bool set_to_none, bool clear_first) {
  auto net = make_net();
  torch::optim::AdamW adam(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int i = 0; i < 6; ++i) {
    const auto micro_batch = accelerator.accumulate(model);
    if (clear_first) optimizer.zero_grad(set_to_none);
    const auto x = torch::arange(8).reshape({2, 4}).to(torch::kFloat) / 8 + accelerator.process_index() + i;
    accelerator.backward(model->forward(x).pow(2).mean());
    const at::Tensor weight = net->parameters()[0];
    if (views && accelerator.sync_gradients()) require(weight.grad().is_view(), "the gradient is no view");
    optimizer.step();
    if (!clear_first) optimizer.zero_grad(set_to_none);
    if (clear_first || !accelerator.sync_gradients()) continue;
    require(weight.grad().defined() == !set_to_none, "set_to_none frees gradients, and nothing else does");
    if (!set_to_none) require(weight.grad().count_nonzero().item<int64_t>() == 0, "zeros");
  }
  return flat(net->parameters());
}

}  // namespace

TEST_CASE("zero_grad clears gradients that are bucket views, by zeros and by freeing them") {
  for (const int64_t accumulation : {1, 2}) {
    for (const bool clear_first : {true, false}) {
      std::vector<at::Tensor> results;
      for (const bool views : {false, true}) {
        for (const bool set_to_none : {true, false}) {
          AcceleratorOptions options;
          options.gradient_accumulation_steps = accumulation;
          options.ddp.gradient_as_bucket_view = views;
          results.resize(results.size() + 1);
          run_ranks(
              2,
              [&](Accelerator& accelerator) {
                const at::Tensor weights = train(accelerator, views, set_to_none, clear_first);
                if (accelerator.is_main_process()) results.back() = weights;
              },
              options);
        }
      }
      for (const at::Tensor& weights : results) CHECK(weights.equal(results[0]));
    }
  }
}

TEST_CASE("zeros cut a gradient off from the graph of a backward with create_graph") {
  Accelerator accelerator(alone());
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(torch::ones({1, 2})).pow(2).sum(), /*retain_graph=*/true, /*create_graph=*/true);
  REQUIRE(net->weight.grad().requires_grad());
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK_FALSE(net->weight.grad().requires_grad());
  CHECK(net->weight.grad().equal(torch::zeros({1, 2})));
}
