// Autocast and gradient scaling; tests/parity/grad_scaler.json was written by torch.amp.GradScaler.
#include <ATen/autocast_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/precision/autocast.h"
#include "accelerate/precision/grad_scaler.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using nlohmann::json;
using test::error_of;
using test::require;
using test::require_contains;

namespace {

AcceleratorOptions mixed(const std::string& precision) {
  AcceleratorOptions options;
  options.mixed_precision = precision;
  return options;
}

// Tells in which dtype its product was computed.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() { linear = register_module("linear", torch::nn::Linear(8, 8)); }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor y = linear->forward(x);
    computed_in = y.scalar_type();
    return {y, torch::arange(3)};
  }
  torch::nn::Linear linear{nullptr};
  at::ScalarType computed_in = at::kDouble;
};
TORCH_MODULE(Probe);

}  // namespace

TEST_CASE("the scale, its growth, and skipped steps are those of torch.amp.GradScaler") {
  const json cases =
      json::parse(std::ifstream(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/grad_scaler.json"));
  REQUIRE(cases.size() == 4);
  for (const json& entry : cases) {
    const json& options = entry.at("options");
    GradScaler scaler({.init_scale = options.at("init_scale"),
                       .growth_factor = options.at("growth_factor"),
                       .backoff_factor = options.at("backoff_factor"),
                       .growth_interval = options.at("growth_interval")});
    at::Tensor w = torch::ones({1}, torch::requires_grad());
    torch::optim::SGD optimizer({w}, 0.125);
    for (size_t i = 0; i < entry.at("pattern").size(); ++i) {
      const bool overflow = entry.at("pattern")[i] != 0;
      optimizer.zero_grad();
      scaler.scale((w * (overflow ? INFINITY : 1.0F)).sum()).backward();
      const bool stepped = scaler.step(optimizer, [&] { optimizer.step(); });
      const json& want = entry.at("steps")[i];
      INFO(options.dump() << " step " << i);
      CHECK(stepped == !overflow);
      CHECK(scaler.get_scale() == want[0].get<double>());
      CHECK(scaler.state().growth_tracker == want[1].get<int64_t>());
      CHECK(w.item<float>() == want[2].get<float>());
    }
  }
}

TEST_CASE("a scaler's state goes on where it was, unscaling happens once, and the scale has a floor") {
  at::Tensor w = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer({w}, 0.0);
  GradScaler scaler({.init_scale = 8, .growth_interval = 2, .min_scale = 2, .max_skipped_steps = 0});
  const auto step = [&](double factor) {
    optimizer.zero_grad();
    scaler.scale((w * factor).sum()).backward();
    scaler.unscale_(optimizer);
    if (std::isfinite(factor)) CHECK(w.grad().item<float>() == factor);
    scaler.unscale_(optimizer);
    if (std::isfinite(factor)) CHECK(w.grad().item<float>() == factor);
    scaler.step(optimizer, [] {});
  };
  step(3);
  const GradScalerState state = scaler.state();
  CHECK(state.growth_tracker == 1);
  step(3);
  CHECK(scaler.get_scale() == 16);
  scaler.load_state(state);
  CHECK(scaler.get_scale() == 8);
  step(3);
  CHECK(scaler.get_scale() == 16);
  for (int i = 0; i < 10; ++i) step(INFINITY);
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("options of a scaler that can't be are errors; so are weights in float16") {
  CHECK_THAT(error_of([] { GradScaler({.growth_factor = 1}); }), ContainsSubstring("growth_factor"));
  CHECK_THAT(error_of([] { GradScaler({.backoff_factor = 1}); }), ContainsSubstring("between 0 and 1"));
  CHECK_THAT(error_of([] { GradScaler({.growth_interval = 0}); }), ContainsSubstring("1 or more"));
  at::Tensor w = torch::ones({1}, torch::dtype(torch::kHalf).requires_grad(true));
  torch::optim::SGD optimizer({w}, 0.1);
  GradScaler scaler({});
  scaler.scale(w.sum().to(torch::kFloat)).backward();
  CHECK_THAT(error_of([&] { scaler.unscale_(optimizer); }),
             ContainsSubstring("Keep the model's weights in float32"));
}

TEST_CASE("a prepared forward computes in the configured precision and returns float32") {
  for (const auto& [name, dtype] :
       {std::pair("no", at::kFloat), std::pair("bf16", at::kBFloat16), std::pair("fp16", at::kHalf)}) {
    for (const bool convert : {true, false}) {
      AcceleratorOptions options = mixed(name);
      options.convert_outputs_to_fp32 = convert;
      test::run_ranks(
          1,
          [&, dtype = dtype, name = name](Accelerator& accelerator) {
            Probe probe;
            auto model = accelerator.prepare(probe);
            const auto [y, numbers] = model->forward(torch::ones({2, 8}));
            require(probe->computed_in == dtype, "computed in");
            require(y.scalar_type() == (convert ? at::kFloat : dtype), "returned");
            require(numbers.scalar_type() == at::kLong, "integers are left alone");
            require(!at::autocast::is_autocast_enabled(at::kCPU), "off afterwards");
            require((accelerator.scaler() != nullptr) == (dtype == at::kHalf), "scaler");
            const auto scope = accelerator.autocast();
            const at::Tensor product = torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
            require(product.scalar_type() == dtype, "autocast()");
            require((scope == nullptr) == (std::string(name) == "no"), "scope");
          },
          options);
    }
  }
}

TEST_CASE("guards nest, restore what they found also after exceptions, and keep no copies of weights") {
  const at::Tensor weight = torch::ones({4, 4}, torch::requires_grad());
  const at::Tensor x = torch::ones({4, 4});
  const auto product = [&] { return torch::mm(x, weight).scalar_type(); };
  CHECK(product() == at::kFloat);
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    CHECK(product() == at::kBFloat16);
    {
      const AutocastGuard off(at::kCPU, at::kBFloat16, /*enabled=*/false);
      CHECK(product() == at::kFloat);
      const AutocastGuard inner(at::kCPU, at::kHalf);
      CHECK(product() == at::kHalf);
    }
    CHECK(product() == at::kBFloat16);
    try {
      const AutocastGuard inner(at::kCPU, at::kHalf);
      throw std::runtime_error("boom 42");
    } catch (const std::runtime_error&) {
    }
    CHECK(product() == at::kBFloat16);
  }
  CHECK(product() == at::kFloat);
  // Copies of weights would each hold their weight's storage.
  const auto uses = weight.use_count();
  for (int i = 0; i < 5; ++i) {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    product();
  }
  CHECK(weight.use_count() == uses);
}

TEST_CASE("an overflow on one rank: all leave the step out, the scale halves, the scheduler holds still") {
  AcceleratorOptions options = mixed("fp16");
  options.grad_scaler.init_scale = 1024;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        torch::nn::Linear net(torch::nn::LinearOptions(4, 1).bias(false));
        {
          const torch::NoGradGuard no_grad;
          net->weight.fill_(0.5);
        }
        torch::optim::SGD sgd(net->parameters(), 0.1);
        torch::optim::StepLR by_step(sgd, 1, 0.5);
        auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, by_step);
        for (int step = 0; step < 6; ++step) {
          const at::Tensor before = net->weight.detach().clone();
          const double rate = sgd.param_groups()[0].options().get_lr();
          optimizer.zero_grad();
          at::Tensor loss = model->forward(torch::ones({2, 4})).mean();
          const bool bad = step == 3;
          if (bad && !accelerator.is_main_process()) loss = loss * 1e38 * 1e10;
          accelerator.backward(loss);
          const at::Tensor norm = accelerator.clip_grad_norm_(model, 1.0);
          require(bad || norm.item<double>() < 10,
                  concat("norm of unscaled gradients ", norm.item<double>()));
          optimizer.step();
          scheduler.step();
          require(optimizer.step_was_skipped() == bad && accelerator.optimizer_step_was_skipped() == bad,
                  "skipped");
          require(net->weight.equal(before) == bad, "weights");
          // LibTorch's schedulers do nothing at their first step.
          if (step > 0) require((sgd.param_groups()[0].options().get_lr() == rate) == bad, "rate");
          require(accelerator.scaler()->get_scale() == (step < 3 ? 1024 : 512), "scale");
        }
        const at::Tensor all = accelerator.gather(net->weight.detach());
        require(all[0].equal(all[1]), "ranks agree");
      },
      options);
}

TEST_CASE("gradients that are never finite end the training with step and parameter") {
  AcceleratorOptions options = mixed("fp16");
  options.grad_scaler.max_skipped_steps = 5;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        Probe probe;
        torch::optim::SGD sgd(probe->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(probe, sgd);
        int steps = 0;
        const std::string error = error_of([&, &model = model, &optimizer = optimizer] {
          for (; steps < 50; ++steps) {
            optimizer.zero_grad();
            at::Tensor loss = model->forward(torch::ones({2, 8})).first.mean();
            if (steps >= 2) loss = loss * NAN;
            accelerator.backward(loss);
            optimizer.step();
          }
        });
        require(steps == 6, concat("ended at step ", steps));
        require_contains(error, "not been finite since optimizer step 3: 5 steps in a row");
        require_contains(error, "'linear.weight'");
        require(accelerator.scaler()->get_scale() > 0, "scale");
      },
      options);
}

TEST_CASE("under fp16, a closure and a backward after clipping are refused") {
  test::run_ranks(
      1,
      [](Accelerator& accelerator) {
        Probe probe;
        torch::optim::SGD sgd(probe->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(probe, sgd);
        require_contains(
            error_of([&, &optimizer = optimizer] { optimizer.step([] { return torch::ones({}); }); }),
            "closure");
        const auto run = [&, &model = model] {
          accelerator.backward(model->forward(torch::ones({2, 8})).first.mean());
        };
        run();
        accelerator.clip_grad_norm_(model, 1.0);
        require_contains(error_of(run), "unscaled already");
        optimizer.zero_grad();
        run();  // cleared: a new start
        optimizer.step();
      },
      mixed("fp16"));
}

TEST_CASE("a loss that is not finite is told in full precision and bf16 too, once") {
  for (const std::string precision : {"no", "bf16"}) {
    std::string log;
    AcceleratorOptions options = mixed(precision);
    options.environment = EnvVars();
    options.topology = Topology{.job_id = "alone"};
    options.logger =
        std::make_shared<Logger>(0, LogLevel::kWarning, [&](std::string_view line) { log += line; });
    Accelerator accelerator(options);
    Probe probe;
    auto model = accelerator.prepare(probe);
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model->forward(torch::ones({2, 8})).first.mean() * (i == 0 ? 1 : NAN));
    }
    CHECK_THAT(log, ContainsSubstring("the loss of rank 0 is nan in backward number 2"));
    CHECK(log.find("nan") == log.rfind("nan"));
  }
}
