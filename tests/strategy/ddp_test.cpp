#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

namespace {

struct TwoPathsImpl : torch::nn::Module {
  TwoPathsImpl() {
    used = register_module("used", torch::nn::Linear(4, 1));
    spare = register_module("spare", torch::nn::Linear(4, 1));
  }
  torch::Tensor forward(const torch::Tensor& x, bool both) { return both ? used(x) + spare(x) : used(x); }
  torch::nn::Linear used{nullptr}, spare{nullptr};
};
TORCH_MODULE(TwoPaths);

// Row r of the joined batch, so that any split over ranks is a split of the same numbers.
torch::Tensor rows(int64_t begin, int64_t count) {
  return torch::sin(torch::arange(begin * 4, (begin + count) * 4).to(torch::kFloat)).reshape({count, 4});
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
}

// The ranks are threads that share torch's generator, so the weights are drawn once, before they start.
const std::vector<torch::Tensor>& start_weights() {
  static const std::vector<torch::Tensor> weights = [] {
    torch::manual_seed(3);
    std::vector<torch::Tensor> out;
    for (const auto& parameter : make_net()->parameters()) out.push_back(parameter.detach().clone());
    return out;
  }();
  return weights;
}

void set_weights(torch::nn::Sequential& net) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < start_weights().size(); ++i) net->parameters()[i].copy_(start_weights()[i]);
}

// Gradients of one rank on 12 rows; what any number of ranks must give together.
std::vector<torch::Tensor> joined_gradients() {
  torch::nn::Sequential net = make_net();
  set_weights(net);
  net->forward(rows(0, 12)).pow(2).mean().backward();
  std::vector<torch::Tensor> out;
  for (const auto& parameter : net->parameters()) out.push_back(parameter.grad().clone());
  return out;
}

}  // namespace

TEST_CASE("gradients on 1 to 4 ranks equal those of one rank on the joined batch, in every mode") {
  const std::vector<torch::Tensor> want = joined_gradients();
  for (const int world : {1, 2, 3, 4}) {
    for (const int mode : {0, 1, 2, 3}) {
      AcceleratorOptions options;
      options.ddp = {.bucket_cap_mb = mode == 1 ? 1e-5 : 25,  // one bucket a parameter
                     .find_unused_parameters = mode == 2,
                     .gradient_as_bucket_view = mode == 1,
                     .static_graph = mode == 3};
      test::run_ranks(
          world,
          [&](Accelerator& accelerator) {
            // Every rank starts from other weights: prepare must give all those of rank 0.
            torch::nn::Sequential net = make_net();
            if (accelerator.is_main_process()) set_weights(net);
            torch::optim::SGD sgd(net->parameters(),
                                  0.0);  // weights stay, so that every step gives these gradients
            auto [model, optimizer] = accelerator.prepare(net, sgd);
            const int64_t count = 12 / accelerator.num_processes();
            for (int step = 0; step < 4; ++step) {
              optimizer.zero_grad();
              accelerator.backward(
                  model->forward(rows(accelerator.process_index() * count, count)).pow(2).mean());
              for (size_t i = 0; i < want.size(); ++i) {
                require(net->parameters()[i].grad().allclose(want[i], 1e-5, 1e-7),
                        concat("gradient ", i, " in step ", step, ", mode ", mode, ", world ", world));
              }
              optimizer.step();
            }
          },
          options);
    }
  }
}

TEST_CASE("a forward that went past the handle, and loss.backward() by hand, are reduced too") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    auto model = accelerator.prepare(net);
    const torch::Tensor x = torch::full({1, 1}, accelerator.process_index() + 1.0F);
    accelerator.backward(net->forward(x).sum());
    require(net->weight.grad().item<float>() == 1.5F, "past the handle");
    net->weight.mutable_grad().reset();
    model(x).sum().backward();
    require(net->weight.grad().item<float>() == 1.5F, "by hand");
    model->forward(x);  // a forward without backward must not disturb
    net->weight.mutable_grad().reset();
    {
      const auto local = accelerator.no_sync(model);
      accelerator.backward(model->forward(x).sum());
      require(net->weight.grad().item<float>() == x.item<float>(), "no_sync stays local");
    }
    accelerator.backward(model->forward(x).sum());
    require(net->weight.grad().item<float>() == 3.0F, "the next backward reduces both");
  });
}

TEST_CASE(
    "accumulation reduces once a window, or in each micro-batch where asked, and equals the joined batch") {
  const std::vector<torch::Tensor> want = joined_gradients();
  const bool each = GENERATE(false, true);
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 3;
  options.sync_each_batch = each;
  test::run_ranks(
      2,
      [&](Accelerator& accelerator) {
        torch::nn::Sequential net = make_net();
        if (accelerator.is_main_process()) set_weights(net);
        torch::optim::SGD sgd(net->parameters(), 0.0);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int window = 0; window < 2; ++window) {
          for (int64_t i = 0; i < 3; ++i) {
            const auto micro_batch = accelerator.accumulate(model);
            optimizer.zero_grad();
            accelerator.backward(
                model->forward(rows(accelerator.process_index() * 6 + i * 2, 2)).pow(2).mean());
            const auto grad = net->parameters()[0].grad().reshape({1, 5, 4});
            const auto both = accelerator.gather(grad);
            require(both[0].equal(both[1]) == (each || i == 2),
                    concat("equal on both ranks after each reduction: ", i));
          }
          for (size_t p = 0; p < want.size(); ++p) {
            require(net->parameters()[p].grad().allclose(want[p], 1e-5, 1e-7), "accumulated gradient");
          }
          optimizer.step();
        }
      },
      options);
}

TEST_CASE("unused parameters are named, and allowed where the options say so") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    auto model = accelerator.prepare(TwoPaths());
    const std::string text = test::error_of<Error>([&] {
      accelerator.backward(model->forward(torch::ones({2, 4}), false).sum());
    });
    test::require_contains(text, "spare.weight, spare.bias");
    test::require_contains(text, "find_unused_parameters");
    require(text.find("used.weight") == std::string::npos, text);
  });
  AcceleratorOptions options;
  options.ddp.find_unused_parameters = true;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        TwoPaths net;
        auto model = accelerator.prepare(net);
        for (const bool both : {false, true, false, true}) {
          // Rank 1 always uses the spare path; rank 0 only every other step.
          const bool here = both || accelerator.process_index() == 1;
          for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
          accelerator.backward(model->forward(torch::ones({2, 4}), here).sum());
          require(net->used->weight.grad().equal(torch::full({1, 4}, 2.0F)), "used path");
          require(net->spare->weight.grad().equal(torch::full({1, 4}, both ? 2.0F : 1.0F)), "spare path");
        }
      },
      options);
}

TEST_CASE("models that differ between ranks are refused, naming rank and parameter") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const int64_t width = accelerator.process_index() == 2 ? 5 : 4;
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, width));
    const std::string text = test::error_of<Error>([&] { accelerator.prepare(net); });
    if (accelerator.process_index() == 2) {
      test::require_contains(
          text,
          "rank 2: this rank's model is not rank 0's: parameter 2 is [1.weight Float [5, 4]] here and "
          "[1.weight Float [4, 4]] on rank 0");
    } else {
      test::require_contains(text, "the model of rank 2 is not rank 0's");
    }
  });
}

TEST_CASE("buffers follow rank 0 after every step") {
  for (const bool follow : {true, false}) {
    AcceleratorOptions options;
    options.ddp.broadcast_buffers = follow;
    test::run_ranks(
        2,
        [&](Accelerator& accelerator) {
          torch::nn::BatchNorm1d norm(4);
          torch::optim::SGD sgd(norm->parameters(), 0.1);
          auto [optimizer, model] = accelerator.prepare(sgd, norm);
          for (int64_t step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            accelerator.backward(
                model->forward(rows(step * 8 + accelerator.process_index() * 100, 8)).pow(2).sum());
            optimizer.step();
            const auto means = accelerator.gather(norm->running_mean.reshape({1, 4}));
            require(means[0].equal(means[1]) == follow, concat("running mean in step ", step));
            const auto weights = accelerator.gather(norm->weight.reshape({1, 4}));
            require(weights[0].equal(weights[1]), "weights");
          }
        },
        options);
  }
}

TEST_CASE("two models trained in turn, each with its own optimizer") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear first(torch::nn::LinearOptions(1, 1).bias(false));
    torch::nn::Linear second(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD first_sgd(first->parameters(), 1.0);
    torch::optim::SGD second_sgd(second->parameters(), 1.0);
    auto [a, b, oa, ob] = accelerator.prepare(first, second, first_sgd, second_sgd);
    const torch::Tensor x = torch::full({1, 1}, accelerator.process_index() + 1.0F);
    for (int step = 0; step < 3; ++step) {
      oa.zero_grad();
      ob.zero_grad();
      const float wa = first->weight.item<float>();
      const float wb = second->weight.item<float>();
      accelerator.backward(a(x).sum());
      require(first->weight.grad().item<float>() == 1.5F && !second->weight.grad().defined(),
              "only the first");
      oa.step();
      require(first->weight.item<float>() == wa - 1.5F, "first moved");
      accelerator.backward(b(x).sum());
      ob.step();
      require(second->weight.item<float>() == wb - 1.5F, "second moved");
    }
  });
}

TEST_CASE("an optimizer of another model, or of none, is refused when it is prepared") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear mine(2, 2);
    torch::nn::Linear other(2, 2);
    torch::optim::SGD sgd(other->parameters(), 0.1);
    test::require_contains(test::error_of<Error>([&] { accelerator.prepare(mine, sgd); }),
                           "2 of the optimizer's 2 parameters belong to no prepared model");
    auto [optimizer, model] = accelerator.prepare(sgd, other);  // in any order
    auto again = accelerator.prepare(model);
    require(again.core() == model.core(), "prepared twice is the same model");
  });
}

TEST_CASE("a strategy's name is checked") {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "names"};
  options.strategy = "dpd";
  CHECK_THROWS_WITH(Accelerator(options), ContainsSubstring("Did you mean 'ddp'?"));
  options.strategy = "ddp";
  CHECK(Accelerator(options).strategy().name() == "single");  // one rank: nothing to reduce
}

TEST_CASE("several forwards before several backwards, as with a discriminator") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    auto model = accelerator.prepare(net);
    const float here = accelerator.process_index() + 1.0F;
    for (int step = 0; step < 3; ++step) {
      net->weight.mutable_grad().reset();
      const auto first = model->forward(torch::full({1, 1}, here));
      const auto second = model->forward(torch::full({1, 1}, 10 * here));
      accelerator.backward(first.sum());
      require(net->weight.grad().item<float>() == 1.5F, "the first backward");
      accelerator.backward(second.sum());
      require(net->weight.grad().item<float>() == 16.5F, "the second backward adds to it");
    }
  });
}

TEST_CASE("several models with one loss accumulate, each reduced once a window") {
  // y = a x + b x with x = rank + 1 + micro-batch: d/da = d/db = mean of x over ranks and micro-batches.
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 2;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Linear first(torch::nn::LinearOptions(1, 1).bias(false));
        torch::nn::Linear second(torch::nn::LinearOptions(1, 1).bias(false));
        torch::optim::SGD first_sgd(first->parameters(), 1.0);
        torch::optim::SGD second_sgd(second->parameters(), 1.0);
        auto [a, b, oa, ob] = accelerator.prepare(first, second, first_sgd, second_sgd);
        const float a_before = first->weight.item<float>();
        const float b_before = second->weight.item<float>();
        for (int i = 0; i < 4; ++i) {
          const auto micro_batch = accelerator.accumulate(a, b);
          oa.zero_grad();
          ob.zero_grad();
          const torch::Tensor x = torch::full({1, 1}, accelerator.process_index() + 1.0F + i);
          accelerator.backward((a(x) + b(x)).sum());
          oa.step();
          ob.step();
        }
        // x: 1 2, 2 3 in the first window, 3 4, 4 5 in the second.
        require(std::abs(first->weight.item<float>() - (a_before - 2 - 4)) < 1e-5F, "first model");
        require(std::abs(second->weight.item<float>() - (b_before - 2 - 4)) < 1e-5F, "second model");
      },
      options);
}

TEST_CASE("debug mode tells a rank in backward from one in another collective") {
  std::mutex mutex;
  std::vector<std::string> messages;
  const Store debug_store = make_in_memory_store();  // a group of its own needs a store of its own
  test::run_threads(2, [&](int rank, const Store& store, const std::string& job) {
    AcceleratorOptions options = test::thread_rank_options(store, rank, 2, job);
    options.communicator =
        make_communicator(debug_store.share(), rank, 2, true, {.debug = true}, *options.logger);
    Accelerator accelerator(options);
    torch::nn::Linear net(1, 1);
    auto model = accelerator.prepare(net);
    try {
      if (rank == 0) {
        accelerator.backward(model->forward(torch::ones({1, 1})).sum());
      } else {
        accelerator.wait_for_everyone();  // left its loop early
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what());
    }
  });
  REQUIRE(messages.size() == 2);
  CHECK_THAT(messages[0], ContainsSubstring("rank 0: backward") && ContainsSubstring("rank 1: barrier"));
}

TEST_CASE(
    "ranks with different numbers of batches train together, and end with one model and one optimizer") {
  for (const bool find_unused : {false, true}) {
    std::mutex mutex;
    std::vector<std::vector<torch::Tensor>> ends;
    AcceleratorOptions options;
    options.ddp.find_unused_parameters = find_unused;
    test::run_ranks(
        3,
        [&](Accelerator& accelerator) {
          torch::nn::Sequential net = make_net();
          set_weights(net);
          torch::optim::Adam adam(net->parameters(), 0.01);
          // 7 samples in batches of 1 for 3 ranks, uneven: 3, 2 and 2 steps.
          const auto data = SharedMemoryDataset::create(accelerator, [] { return rows(0, 7); });
          auto [model, optimizer, loader] =
              accelerator.prepare(net, adam, DataLoader(data, {.batch_size = 1}));
          int64_t steps = 0;
          const auto train = [&, &model = model, &optimizer = optimizer, &loader = loader] {
            for (auto& batch : loader) {
              optimizer.zero_grad();
              accelerator.backward(model->forward(batch.data).pow(2).mean());
              optimizer.step();
              ++steps;
            }
          };
          for (int epoch = 0; epoch < 3; ++epoch) {
            accelerator.join_uneven_inputs(train, {.even_batches = false}, model);
          }
          require(steps == (accelerator.is_main_process() ? 9 : 6), concat("steps ", steps));
          require(loader.size() == 3, "even batches again outside");
          train();  // even, with reductions that must still match
          const std::lock_guard lock(mutex);
          ends.emplace_back();
          for (const auto& parameter : net->parameters()) ends.back().push_back(parameter.detach().clone());
        },
        options);
    REQUIRE(ends.size() == 3);
    for (size_t i = 0; i < ends[0].size(); ++i) {
      CHECK(ends[0][i].equal(ends[1][i]));  // bit for bit: the moments agreed too
      CHECK(ends[0][i].equal(ends[2][i]));
      CHECK_FALSE(ends[0][i].equal(start_weights()[i]));
    }
  }
}

TEST_CASE("a rank without any batch takes part with zeros: gradients are sums over the world size") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(1);
    }
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.join_uneven_inputs(
        [&, &model = model, &optimizer = optimizer] {
          if (!accelerator.is_main_process()) return;
          optimizer.zero_grad();
          accelerator.backward(model->forward(torch::ones({1, 1})).sum());
          optimizer.step();
        },
        {}, model);
    require(net->weight.item<float>() == 0.5F, concat("weight ", net->weight.item<float>()));  // 1 - 1/2
  });
}
