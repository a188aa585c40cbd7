#include <limits>
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

namespace {

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 3));
  const torch::NoGradGuard no_grad;
  double start = 0;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(torch::cos(torch::arange(parameter.numel()) + start).view(parameter.sizes()) * 0.5);
    start += 10;
  }
  return net;
}

// Row r of the joined batch, so that any split over ranks is a split of the same numbers.
torch::Tensor rows(int64_t begin, int64_t count) {
  return torch::sin(torch::arange(begin * 4, (begin + count) * 4).to(torch::kFloat)).reshape({count, 4});
}

torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

// Gradients of one rank on 12 rows; what any number of ranks must give together.
std::vector<torch::Tensor> joined_gradients() {
  torch::nn::Sequential net = make_net();
  loss_of(net->forward(rows(0, 12))).backward();
  std::vector<torch::Tensor> out;
  for (const auto& parameter : net->parameters()) out.push_back(parameter.grad().clone());
  return out;
}

// As many columns as the matrices have: nothing is lost but by rounding.
PowerSgdOptions lossless() {
  return {.matrix_approximation_rank = 5,
          .start_powerSGD_iter = 2,
          .min_compression_rate = 0.01,
          .orthogonalization_epsilon = 1e-20};
}

// The mean, asynchronously.
class MeanHook final : public CommHook {
 public:
  TensorFuture run(const GradientBucket& bucket, Communicator& communicator) override {
    const double ranks = communicator.size();
    return then(all_reduce_async(communicator, bucket.buffer),
                [ranks](const torch::Tensor& sum) { return sum.div_(ranks); });
  }
};

std::vector<std::pair<std::string, DdpOptions>> hooks() {
  return {{"fp16", {.comm_hook = "fp16"}},
          {"bf16", {.comm_hook = "bf16"}},
          {"bf16 of fp16", {.comm_hook = "fp16", .comm_wrapper = "bf16"}},
          {"power_sgd", {.comm_hook = "power_sgd", .comm_state_option = lossless()}},
          {"power_sgd in one batch a shape",
           {.comm_hook = "power_sgd",
            .comm_state_option = {.matrix_approximation_rank = 5,
                                  .start_powerSGD_iter = 2,
                                  .min_compression_rate = 0.01,
                                  .orthogonalization_epsilon = 1e-20,
                                  .batch_tensors_with_same_shape = true}}},
          {"a function",
           {.custom_comm_hook = comm_hook_of([](const GradientBucket& bucket, Communicator& communicator) {
              at::Tensor mean = bucket.buffer.clone();
              communicator.all_reduce(mean, ReduceOp::kMean);
              return mean;
            })}},
          {"a class", {.custom_comm_hook = [] { return std::make_unique<MeanHook>(); }}},
          {"a class in fp16",
           {.comm_wrapper = "fp16", .custom_comm_hook = [] { return std::make_unique<MeanHook>(); }}}};
}

bool is_half(const DdpOptions& ddp) {
  return ddp.comm_hook == "fp16" || ddp.comm_hook == "bf16" || ddp.comm_wrapper != "no";
}

std::string config_error(const DdpOptions& ddp) {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "hooks"};
  options.ddp = ddp;
  return test::error_of<ConfigError>([&] { Accelerator accelerator(options); });
}

}  // namespace

TEST_CASE("gradients under every hook equal those of one rank on the joined batch, in every mode") {
  const std::vector<torch::Tensor> want = joined_gradients();
  for (const auto& [name, ddp] : hooks()) {
    const double tolerance = is_half(ddp) ? 1e-2 : 1e-5;
    for (const int world : {1, 2, 3}) {
      for (const int mode : {0, 1, 2, 3}) {
        AcceleratorOptions options;
        options.ddp = ddp;
        if (mode == 1) options.ddp.bucket_cap_mb = 1e-5;  // one bucket a parameter
        options.ddp.gradient_as_bucket_view = mode == 1;
        options.ddp.find_unused_parameters = mode == 2;
        options.ddp.static_graph = mode == 3;
        test::run_ranks(
            world,
            [&, &name = name](Accelerator& accelerator) {
              torch::nn::Sequential net = make_net();
              torch::optim::SGD sgd(net->parameters(), 0.0);  // weights stay, so that every step gives these
              auto [model, optimizer] = accelerator.prepare(net, sgd);
              const int64_t count = 12 / accelerator.num_processes();
              for (int step = 0; step < 5; ++step) {
                optimizer.zero_grad();
                accelerator.backward(
                    loss_of(model->forward(rows(accelerator.process_index() * count, count))));
                for (size_t i = 0; i < want.size(); ++i) {
                  require(
                      net->parameters()[i].grad().allclose(want[i], tolerance, tolerance * 1e-1),
                      concat(name, ": gradient ", i, " in step ", step, ", mode ", mode, ", world ", world));
                }
              }
            },
            options);
      }
    }
  }
}

TEST_CASE("under every hook accumulation and no_sync leave gradients local until the window ends") {
  const std::vector<torch::Tensor> want = joined_gradients();
  for (const auto& [name, ddp] : hooks()) {
    const double tolerance = is_half(ddp) ? 1e-2 : 1e-5;
    AcceleratorOptions options;
    options.gradient_accumulation_steps = 3;
    options.ddp = ddp;
    test::run_ranks(
        2,
        [&, &name = name](Accelerator& accelerator) {
          torch::nn::Sequential net = make_net();
          torch::optim::SGD sgd(net->parameters(), 0.0);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          for (int window = 0; window < 4; ++window) {
            for (int64_t i = 0; i < 3; ++i) {
              const auto micro_batch = accelerator.accumulate(model);
              optimizer.zero_grad();
              accelerator.backward(loss_of(model->forward(rows(accelerator.process_index() * 6 + i * 2, 2))));
              const auto both = accelerator.gather(net->parameters()[0].grad().reshape({1, 5, 4}));
              require(both[0].equal(both[1]) == (i == 2), concat(name, ": micro-batch ", i));
            }
            for (size_t p = 0; p < want.size(); ++p) {
              require(net->parameters()[p].grad().allclose(want[p], tolerance, tolerance * 1e-1),
                      concat(name, ": accumulated gradient ", p));
            }
            optimizer.step();
          }
        },
        options);
  }
}

TEST_CASE(
    "a custom hook sees buckets in order, with gradients and their parameters, and may change what is sent") {
  struct Seen {
    int64_t index;
    bool is_last;
    size_t gradients;
  };
  std::mutex mutex;
  std::vector<Seen> seen;
  AcceleratorOptions options;
  options.ddp.bucket_cap_mb = 1e-5;
  options.ddp.custom_comm_hook = comm_hook_of([&](const GradientBucket& bucket, Communicator& communicator) {
    int64_t numel = 0;
    require(bucket.gradients.size() == bucket.parameters.size(), "one parameter a gradient");
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      require(bucket.gradients[i].sizes() == bucket.parameters[i].sizes(), "shapes");
      require(bucket.gradients[i].data_ptr<float>() == bucket.buffer.data_ptr<float>() + numel, "views");
      numel += bucket.gradients[i].numel();
    }
    require(bucket.buffer.dim() == 1 && bucket.buffer.numel() >= numel, "flat");
    require(!torch::GradMode::is_enabled(), "nothing is recorded");
    if (communicator.rank() == 0) {
      const std::lock_guard lock(mutex);
      seen.push_back({bucket.index, bucket.is_last, bucket.gradients.size()});
    }
    return torch::full_like(bucket.buffer, 7);
  });
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Sequential net = make_net();
        auto model = accelerator.prepare(net);
        for (int step = 0; step < 2; ++step) {
          model->zero_grad();
          accelerator.backward(loss_of(model->forward(rows(0, 2))));
          for (const auto& parameter : net->parameters()) {
            require(parameter.grad().equal(torch::full_like(parameter, 7)), "the hook's own gradient");
          }
        }
      },
      options);
  REQUIRE(seen.size() == 5);  // one bucket in the first step, then one a parameter
  CHECK((seen[0].index == 0 && seen[0].is_last && seen[0].gradients == 4));
  for (size_t i = 1; i < 5; ++i) {
    CHECK(seen[i].index == static_cast<int64_t>(i) - 1);
    CHECK(seen[i].is_last == (i == 4));
    CHECK(seen[i].gradients == 1);
  }
}

TEST_CASE("each prepared model has a hook of its own") {
  std::atomic<int> made = 0;
  AcceleratorOptions options;
  options.ddp.custom_comm_hook = [&] {
    ++made;
    return std::make_unique<MeanHook>();
  };
  test::run_ranks(
      2, [](Accelerator& accelerator) { accelerator.prepare(make_net(), make_net()); }, options);
  CHECK(made == 4);
}

TEST_CASE("ranks with different numbers of batches train together under every hook") {
  for (const auto& [name, ddp] : hooks()) {
    std::mutex mutex;
    std::vector<std::vector<torch::Tensor>> ends;
    AcceleratorOptions options;
    options.ddp = ddp;
    options.ddp.bucket_cap_mb = 1e-5;
    test::run_ranks(
        3,
        [&](Accelerator& accelerator) {
          torch::nn::Sequential net = make_net();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          const auto data = SharedMemoryDataset::create(accelerator, [] { return rows(0, 13); });
          auto [model, optimizer, loader] =
              accelerator.prepare(net, sgd, DataLoader(data, {.batch_size = 1}));
          int64_t steps = 0;
          const auto train = [&, &model = model, &optimizer = optimizer, &loader = loader] {
            for (auto& batch : loader) {
              optimizer.zero_grad();
              accelerator.backward(loss_of(model->forward(batch.data)));
              optimizer.step();
              ++steps;
            }
          };
          accelerator.join_uneven_inputs(train, {.even_batches = false}, model);
          require(steps == (accelerator.is_main_process() ? 5 : 4), concat("steps ", steps));
          const std::lock_guard lock(mutex);
          ends.emplace_back();
          for (const auto& parameter : net->parameters()) ends.back().push_back(parameter.detach().clone());
        },
        options);
    REQUIRE(ends.size() == 3);
    // 5 steps by hand; a rank without a batch counts as one with gradients of zero.
    torch::nn::Sequential net = make_net();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (int64_t step = 0; step < 5; ++step) {
      sgd.zero_grad();
      for (int64_t row = step * 3; row < std::min<int64_t>(13, step * 3 + 3); ++row) {
        (loss_of(net->forward(rows(row, 1))) / 3).backward();
      }
      sgd.step();
    }
    const double tolerance = is_half(ddp) ? 1e-2 : 1e-5;
    for (size_t i = 0; i < ends[0].size(); ++i) {
      INFO(name);
      CHECK(ends[0][i].equal(ends[1][i]));
      CHECK(ends[0][i].equal(ends[2][i]));
      CHECK(ends[0][i].allclose(net->parameters()[i], tolerance, tolerance));
    }
  }
}

TEST_CASE("what a custom hook returns and throws is checked and comes out of backward") {
  const auto run = [](const CommHookFactory& factory, const std::string& expected) {
    AcceleratorOptions options;
    options.ddp.custom_comm_hook = factory;
    test::run_ranks(
        2,
        [&](Accelerator& accelerator) {
          auto model = accelerator.prepare(make_net());
          const std::string text = test::error_of<std::exception>(
              [&] { accelerator.backward(loss_of(model->forward(rows(0, 2)))); });
          test::require_contains(text, expected);
        },
        options);
  };
  run(comm_hook_of([](const GradientBucket&, Communicator&) { return torch::ones({3}); }),
      "result of a communication hook: expected a dense tensor of as many elements as the bucket, on its "
      "device, got "
      "3 elements on cpu for 43 on cpu");
  run(comm_hook_of([](const GradientBucket&, Communicator&) { return torch::Tensor(); }), "got no tensor");
  run(comm_hook_of([](const GradientBucket&, Communicator&) -> torch::Tensor {
        throw std::runtime_error("the hook's own trouble");
      }),
      "the hook's own trouble");
}

TEST_CASE("options of hooks that can't be are refused by name, on one rank too") {
  CHECK_THAT(config_error({.comm_hook = "power_sdg"}),
             ContainsSubstring("comm_hook (DdpOptions): expected one of no, fp16, bf16, power_sgd, "
                               "batched_power_sgd, got 'power_sdg'. Did you mean 'power_sgd'?"));
  CHECK_THAT(config_error({.comm_hook = "fp16", .comm_wrapper = "fp8"}),
             ContainsSubstring("comm_wrapper (DdpOptions)") && ContainsSubstring("got 'fp8'"));
  CHECK_THAT(config_error({.comm_wrapper = "bf16"}), ContainsSubstring("Say comm_hook = \"bf16\""));
  CHECK_THAT(
      config_error({.comm_hook = "fp16", .custom_comm_hook = [] { return std::make_unique<MeanHook>(); }}),
      ContainsSubstring("custom_comm_hook (DdpOptions) with comm_hook 'fp16'"));
  const auto power_sgd = [](const PowerSgdOptions& options) {
    return config_error({.comm_hook = "power_sgd", .comm_state_option = options});
  };
  CHECK_THAT(power_sgd({.matrix_approximation_rank = 0}),
             ContainsSubstring("matrix_approximation_rank (PowerSgdOptions): expected at least 1, got 0"));
  CHECK_THAT(power_sgd({.start_powerSGD_iter = 1}),
             ContainsSubstring(
                 "start_powerSGD_iter (PowerSgdOptions): expected at least 2 with use_error_feedback"));
  CHECK_THAT(power_sgd({.start_powerSGD_iter = 0, .use_error_feedback = false}),
             ContainsSubstring("start_powerSGD_iter"));
  CHECK_THAT(power_sgd({.start_powerSGD_iter = -1, .use_error_feedback = false, .warm_start = false}),
             ContainsSubstring("start_powerSGD_iter"));
  CHECK_THAT(power_sgd({.min_compression_rate = 0}), ContainsSubstring("min_compression_rate"));
  CHECK_THAT(power_sgd({.min_compression_rate = std::nan("")}), ContainsSubstring("min_compression_rate"));
  CHECK_THAT(power_sgd({.orthogonalization_epsilon = -1}), ContainsSubstring("orthogonalization_epsilon"));
  CHECK_THAT(power_sgd({.random_seed = -1}), ContainsSubstring("random_seed"));
  CHECK_THAT(power_sgd({.random_seed = int64_t{1} << 32}), ContainsSubstring("expected 0 to 4294967295"));
}

TEST_CASE("a hook and sparse gradients are refused, naming the parameter") {
  AcceleratorOptions options;
  options.ddp.comm_hook = "fp16";
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Sequential net(torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)));
        const std::string text = test::error_of<ConfigError>([&] { accelerator.prepare(net); });
        test::require_contains(text, "a communication hook (DdpOptions) for the gradient of 0.weight");
        test::require_contains(text, "got a sparse gradient");
      },
      options);
}

TEST_CASE("a gradient that overflows leaves nothing behind in PowerSGD") {
  AcceleratorOptions options;
  options.ddp.comm_hook = "power_sgd";
  options.ddp.comm_state_option = {.matrix_approximation_rank = 1, .start_powerSGD_iter = 2};
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Linear net(16, 16);
        auto model = accelerator.prepare(net);
        for (int step = 0; step < 8; ++step) {
          net->zero_grad();
          const auto x = torch::sin(torch::arange(32).to(torch::kFloat) + step + accelerator.process_index());
          const bool overflow = step == 4 && accelerator.process_index() == 1;
          const auto loss = model->forward(x.view({2, 16})).pow(2).mean();
          accelerator.backward(overflow ? loss * std::numeric_limits<float>::infinity() : loss);
          const bool finite = net->weight.grad().isfinite().all().item<bool>();
          require(finite == (step != 4), concat("finite in step ", step));
        }
      },
      options);
}
