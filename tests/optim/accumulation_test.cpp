#include "accelerate/optim/accumulation.h"

#include "optim_test_support.h"
#include "support/thread_ranks.h"

using namespace accelerate;
using accelerate::test::alone;

TEST_CASE("windows end where HF's do, and know their real size") {
  // From HF Accelerate 1.15: 5 batches, 2 steps: 0 1 0 1 1; 6 batches, 4 steps: 0 0 0 1 0 1.
  const auto run = [](int64_t batches, int64_t steps) {
    const auto active = std::make_shared<ActiveLoaders>();
    Accumulation accumulation({.num_steps = steps}, active);
    std::vector<std::pair<bool, int64_t>> out;
    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto progress = std::make_shared<LoaderProgress>();
      active->push(progress);
      for (progress->batches_left = batches; progress->batches_left > 0; --progress->batches_left) {
        accumulation.begin_micro_batch();
        out.emplace_back(accumulation.sync_gradients(), accumulation.window_size());
      }
      active->remove(progress.get());
    }
    return out;
  };
  using Expected = std::vector<std::pair<bool, int64_t>>;
  const Expected five = {{false, 2}, {true, 2}, {false, 2}, {true, 2}, {true, 1}};
  Expected twice = five;
  twice.insert(twice.end(), five.begin(), five.end());
  CHECK(run(5, 2) == twice);
  const Expected six = run(6, 4);
  CHECK(Expected(six.begin(), six.begin() + 6) ==
        Expected{{false, 4}, {false, 4}, {false, 4}, {true, 4}, {false, 2}, {true, 2}});
}

TEST_CASE("each optimizer step of an epoch moves the weight by the same gradient, however short its window") {
  for (const bool clear_first : {true, false}) {
    Accelerator accelerator(alone(2));
    torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
    {
      const torch::NoGradGuard no_grad;
      linear->weight.zero_();  // small whole numbers from here on, so that the moves are exact
    }
    torch::optim::SGD sgd(linear->parameters(), 1.0);
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::ones({5, 1}); });
    auto [model, optimizer, loader] = accelerator.prepare(linear, sgd, DataLoader(data, {.batch_size = 1}));
    std::vector<float> moves;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& batch : loader) {
        const auto micro_batch = accelerator.accumulate(model);
        const float before = linear->weight.item<float>();
        if (clear_first) optimizer.zero_grad();
        accelerator.backward(model->forward(batch.data).sum());
        optimizer->step();
        if (!clear_first) optimizer.zero_grad();
        if (accelerator.sync_gradients()) moves.push_back(before - linear->weight.item<float>());
      }
    }
    CHECK(moves == std::vector<float>{1, 1, 1, 1, 1, 1});
  }
}

TEST_CASE(
    "clearing after the backward of a finished window leaves the step out; without accumulation it always "
    "clears") {
  Accelerator accelerator(alone(1));
  torch::nn::Linear linear(2, 1);
  torch::optim::SGD sgd(linear->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(linear, sgd);
  accelerator.backward(model->forward(torch::ones({1, 2})).sum());
  CHECK(linear->weight.grad().defined());
  optimizer.zero_grad();
  CHECK_FALSE(linear->weight.grad().defined());
  {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model->forward(torch::ones({1, 2})).sum());
    optimizer.zero_grad(/*set_to_none=*/false);
  }
  CHECK(linear->weight.grad().equal(torch::zeros({1, 2})));
  {
    const auto micro_batch =
        accelerator.accumulate(model);  // the user never stepped: old gradients must not stay
    linear->weight.mutable_grad() = torch::ones({1, 2});
    optimizer.zero_grad();
  }
  CHECK_FALSE(linear->weight.grad().defined());
}

TEST_CASE(
    "the scheduler moves once per process under HF's rule, and at every call when it does not follow the "
    "optimizer") {
  const auto last_rate = [](const std::string& name, const std::string& value) {
    AcceleratorOptions options;
    options.gradient_accumulation_steps = 2;
    double rate = 0;
    test::run_threads(2, [&](int rank, const Store& store, const std::string& job) {
      AcceleratorOptions own = test::thread_rank_options(store, rank, 2, job, options);
      own.environment = test::variables({{name, value}});
      Accelerator accelerator(own);
      torch::nn::Linear linear(1, 1);
      torch::optim::SGD sgd(linear->parameters(), 1.0);
      torch::optim::StepLR step_lr(sgd, 1, 0.5);
      auto [scheduler, model, optimizer] = accelerator.prepare(step_lr, linear, sgd);
      for (int i = 0; i < 4; ++i) {
        const auto micro_batch = accelerator.accumulate(model);
        accelerator.backward(model->forward(torch::ones({1, 1})).sum());
        optimizer.step();
        scheduler->step();
      }
      if (rank == 0) rate = sgd.param_groups()[0].options().get_lr();
    });
    return rate;
  };
  // What LibTorch's own scheduler gives after so many calls of step().
  const auto after = [](int calls) {
    torch::nn::Linear linear(1, 1);
    torch::optim::SGD sgd(linear->parameters(), 1.0);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    for (int i = 0; i < calls; ++i) step_lr.step();
    return sgd.param_groups()[0].options().get_lr();
  };
  REQUIRE(after(2) != after(4));
  CHECK(last_rate("UNRELATED", "") == after(2));                                      // 2 optimizer steps
  CHECK(last_rate("ACCELERATE_SCHEDULER_RULE", "per_process") == after(4));           // 2 steps x 2 ranks
  CHECK(last_rate("ACCELERATE_STEP_SCHEDULER_WITH_OPTIMIZER", "false") == after(4));  // 4 calls
}

TEST_CASE("the scheduler moves once per optimizer step") {
  Accelerator accelerator(alone(2));
  torch::nn::Linear linear(1, 1);
  torch::optim::SGD sgd(linear->parameters(), 1.0);
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  auto [scheduler, model, optimizer] = accelerator.prepare(step_lr, linear, sgd);
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model->forward(torch::ones({1, 1})).sum());
    optimizer.step();
    scheduler->step();
    rates.push_back(sgd.param_groups()[0].options().get_lr());
  }
  // LibTorch's first step() leaves the rate as it is.
  CHECK(rates == std::vector<double>{1, 1, 1, 0.5, 0.5, 0.25});
}

TEST_CASE("clipping gives torch's norm and factor, and does nothing inside a window") {
  Accelerator accelerator(alone(2));
  torch::nn::Linear linear(torch::nn::LinearOptions(2, 1).bias(false));
  torch::optim::SGD sgd(linear->parameters(), 1.0);
  auto [model, optimizer] = accelerator.prepare(linear, sgd);
  for (int i = 0; i < 2; ++i) {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model->forward(torch::tensor({{3.0F, 4.0F}})).sum());
    const double norm = accelerator.clip_grad_norm_(model, 1.0).item<double>();
    CHECK(norm == Approx(i == 0 ? 0.0 : 5.0));
    if (i == 0) CHECK(linear->weight.grad().allclose(torch::tensor({{1.5F, 2.0F}})));
  }
  // 3 / (5 + 1e-6), 4 / (5 + 1e-6)
  CHECK(linear->weight.grad().allclose(torch::tensor({{0.6F, 0.8F}}), 1e-5, 1e-6));
  accelerator.clip_grad_value_(model.parameters(), 0.7);
  CHECK(linear->weight.grad().allclose(torch::tensor({{0.6F, 0.7F}}), 1e-5, 1e-6));
}

TEST_CASE("two models with their own optimizers accumulate without disturbing each other") {
  for (const int64_t window : {1, 2, 4}) {
    Accelerator accelerator(alone(window));
    torch::nn::Linear first(torch::nn::LinearOptions(1, 1).bias(false));
    torch::nn::Linear second(torch::nn::LinearOptions(1, 1).bias(false));
    {
      const torch::NoGradGuard no_grad;
      first->weight.zero_();
      second->weight.zero_();
    }
    torch::optim::SGD first_sgd(first->parameters(), 1.0);
    torch::optim::SGD second_sgd(second->parameters(), 1.0);
    auto [a, b, oa, ob] = accelerator.prepare(first, second, first_sgd, second_sgd);
    for (int64_t i = 0; i < 2 * window; ++i) {
      const auto micro_batch = accelerator.accumulate(a, b);
      oa.zero_grad();
      accelerator.backward(a(torch::ones({1, 1})).sum());
      oa.step();
      ob.zero_grad();
      accelerator.backward(b(torch::ones({1, 1})).sum());
      ob.step();
    }
    CHECK(first->weight.item<float>() == -2);
    CHECK(second->weight.item<float>() == -2);
  }
}

TEST_CASE("a scheduler follows its own optimizer, and one whose optimizer is gone is refused") {
  Accelerator accelerator(alone(1));
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::StepLR step_lr(sgd, 1, 0.5);
  CHECK_THROWS_WITH(accelerator.prepare(net, std::move(sgd), step_lr),
                    ContainsSubstring("the scheduler's optimizer is none of the prepared ones"));
  torch::optim::SGD other(net->parameters(), 1.0);
  torch::optim::StepLR stranger(other, 1, 0.5);
  CHECK_THROWS_WITH(accelerator.prepare(stranger), ContainsSubstring("Give that optimizer to prepare() too"));
  auto [scheduler, optimizer] = accelerator.prepare(stranger, other);
  CHECK(other.param_groups()[0].options().get_lr() == 1.0);  // looking left the rate as it was
}

TEST_CASE("optimizers that evaluate the loss themselves, and graphs that are kept") {
  Accelerator accelerator(alone(1));
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(1.0));
  auto [model, optimizer] = accelerator.prepare(net, lbfgs);
  const auto x = torch::ones({1, 1});
  optimizer.step([&, &model = model] {
    model.zero_grad();
    const auto loss = (model(x) - 3).pow(2).sum();
    accelerator.backward(loss);
    return loss;
  });
  CHECK(net->weight.item<float>() == Approx(3).margin(1e-4));
  model.zero_grad();
  const auto loss = model(x).sum();
  accelerator.backward(loss, /*retain_graph=*/true);
  accelerator.backward(loss);
  CHECK(net->weight.grad().item<float>() == 2);
}

TEST_CASE("a loop that counts its micro-batches by itself divides by gradient_accumulation_steps, as HF") {
  Accelerator accelerator(alone(4));
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  auto model = accelerator.prepare(net);
  accelerator.backward(model(torch::ones({1, 1})).sum());
  CHECK(net->weight.grad().item<float>() == 0.25F);
}
