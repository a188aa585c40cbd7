// Training by oneself, several forwards for one reduction, and batch sizes that fit.
#include <ATen/CPUGeneratorImpl.h>

#include <new>

#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::require;
using test::require_contains;

namespace {

torch::nn::Linear one_weight(double value) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  return net;
}

}  // namespace

TEST_CASE(
    "local steps stay local and are averaged every so often, and gradients are reduced again afterwards") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    auto net = one_weight(0);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    // The gradient of w * x is x: rank r moves by -(r + 1) a step.
    const at::Tensor x = torch::full({1, 1}, static_cast<double>(accelerator.process_index() + 1));
    const auto train = [&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      accelerator.backward(model->forward(x).sum());
      optimizer.step();
      return net->weight.item<double>();
    };
    LocalSgd local(accelerator, model, 2);
    const double own = -(accelerator.process_index() + 1.0);
    require(train() == own, "first step is local");
    local.step();
    require(net->weight.item<double>() == own, "not averaged yet");
    train();
    local.step();
    require(net->weight.item<double>() == -3, "mean of -2 and -4");
    train();
    local.step();
    local.finish();
    require(net->weight.item<double>() == -4.5, "mean of -4 and -5");
    local.finish();
    require(train() == -6, "reduced again: a mean gradient of 1.5");
    require_contains(error_of([&, &model = model] { LocalSgd(accelerator, model, 0); }), "1 or more steps");
  });
}

TEST_CASE("trigger_sync_in_backward reduces what several forwards without reduction have collected") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    auto net = one_weight(1);
    auto model = accelerator.prepare(net);
    const at::Tensor x = torch::full({1, 1}, static_cast<double>(accelerator.process_index() + 1));
    {
      const auto scope = accelerator.no_sync(model);
      const at::Tensor first = model->forward(x).sum();
      const at::Tensor second = model->forward(2 * x).sum();
      accelerator.backward(first);
      require(net->weight.grad().item<double>() == accelerator.process_index() + 1, "local");
      accelerator.trigger_sync_in_backward(model);
      accelerator.backward(second);
    }
    require(net->weight.grad().item<double>() == 4.5, "3 and 6, the mean of both");
  });
}

TEST_CASE("a batch size is lowered by tenths until it fits") {
  std::vector<int64_t> tried;
  const int64_t found = find_executable_batch_size([&](int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 60) throw std::runtime_error("CUDA out of memory. Tried to allocate 2.00 GiB");
    return batch_size;
  });
  CHECK(found == 58);
  CHECK(tried == std::vector<int64_t>{128, 115, 103, 92, 82, 73, 65, 58});  // as HF Accelerate
  CHECK_THAT(error_of([] { find_executable_batch_size([](int64_t) { throw std::bad_alloc(); }, 4); }),
             ContainsSubstring("no batch size from 4 down to 1"));
  int calls = 0;
  CHECK(error_of([&] {
          find_executable_batch_size([&](int64_t) {
            ++calls;
            throw std::runtime_error("boom 42");
          });
        }) == "boom 42");
  CHECK(calls == 1);
  const auto too_much = [] { return torch::empty({int64_t{1} << 60}); };
  try {
    too_much();
    FAIL("that can't be had");
  } catch (const std::exception& error) {
    CHECK(is_out_of_memory(error));
  }
}

TEST_CASE("free_memory forgets what was prepared") {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "alone"};
  Accelerator accelerator(options);
  auto net = one_weight(1);
  const auto uses = net.ptr().use_count();
  {
    auto model = accelerator.prepare(net);
    CHECK(net.ptr().use_count() > uses);
  }
  CHECK(net.ptr().use_count() > uses);
  accelerator.free_memory();
  CHECK(net.ptr().use_count() == uses);
}
