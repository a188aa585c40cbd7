// Schedules equal transformers'. tests/parity/lr_schedules.json was written by lr_schedules_gen.py beside it.
#include "accelerate/optim/lr_schedules.h"

#include "optim_test_support.h"
#include "support/checks.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

using Json = nlohmann::json;

template <class T>
std::optional<T> maybe(const Json& json, const char* name) {
  return json.contains(name) && !json.at(name).is_null() ? std::optional<T>(json.at(name).get<T>())
                                                         : std::nullopt;
}

std::optional<RampShape> maybe_shape(const Json& json, const char* name) {
  const auto text = maybe<std::string>(json, name);
  if (!text.has_value()) return std::nullopt;
  return *text == "linear"   ? RampShape::kLinear
         : *text == "cosine" ? RampShape::kCosine
                             : RampShape::kOneMinusSqrt;
}

SchedulerOptions options_of(const Json& one) {
  const Json& json = one.at("options");
  return {.num_warmup_steps = one.at("num_warmup_steps"),
          .num_training_steps = maybe<int64_t>(one, "num_training_steps"),
          .num_cycles = maybe<double>(json, "num_cycles"),
          .lr_end = maybe<double>(json, "lr_end"),
          .power = maybe<double>(json, "power"),
          .timescale = maybe<int64_t>(json, "timescale"),
          .min_lr = maybe<double>(json, "min_lr"),
          .min_lr_rate = maybe<double>(json, "min_lr_rate"),
          .warmup_lr_rate = maybe<double>(json, "warmup_lr_rate"),
          .num_decay_steps = maybe<int64_t>(json, "num_decay_steps"),
          .num_stable_steps = maybe<int64_t>(json, "num_stable_steps"),
          .warmup_type = maybe_shape(json, "warmup_type"),
          .decay_type = maybe_shape(json, "decay_type"),
          .min_lr_ratio = maybe<double>(json, "min_lr_ratio")};
}

// Two groups with rates of their own, as lr_schedules_gen.py has them.
torch::optim::SGD make_sgd(const Json& file) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()});
  groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()},
                      std::make_unique<torch::optim::SGDOptions>(file.at("second_rate").get<double>()));
  return torch::optim::SGD(groups, torch::optim::SGDOptions(file.at("rate").get<double>()));
}

double rate_of(const torch::optim::Optimizer& optimizer, size_t group) {
  return optimizer.param_groups()[group].options().get_lr();
}

void check_rates(const torch::optim::Optimizer& optimizer, const Json& want) {
  for (size_t group = 0; group < 2; ++group) {
    CHECK(rate_of(optimizer, group) == Approx(want[group].get<double>()).epsilon(1e-12).margin(1e-17));
  }
}

}  // namespace

TEST_CASE("every schedule has transformers' rates step by step, and goes on from a saved state") {
  const Json file = golden("lr_schedules.json");
  REQUIRE(file.at("cases").size() >= 20);
  for (const Json& one : file.at("cases")) {
    INFO(one.at("name") << " " << one.at("options"));
    const Json& want = one.at("rates");
    torch::optim::SGD sgd = make_sgd(file);
    LambdaLR schedule = get_scheduler(one.at("name").get<std::string>(), sgd, options_of(one));
    check_rates(sgd, want[0]);
    LrScheduleState state;
    for (size_t step = 1; step < want.size(); ++step) {
      schedule.step();
      check_rates(sgd, want[step]);
      if (step == 11) state = schedule.state();
    }
    CHECK(state.step == 11);
    // A new run makes optimizer and schedule anew; the optimizer's own state may have been loaded or not.
    torch::optim::SGD fresh = make_sgd(file);
    LambdaLR resumed = get_scheduler(one.at("name").get<std::string>(), fresh, options_of(one));
    resumed.load_state_dict(state);
    check_rates(fresh, want[11]);
    for (size_t step = 12; step < want.size(); ++step) {
      resumed.step();
      check_rates(fresh, want[step]);
    }
    CHECK(resumed.state_dict().step == static_cast<int64_t>(want.size()) - 1);
    CHECK(resumed.get_last_lr()[1] == rate_of(fresh, 1));
  }
}

TEST_CASE("a prepared schedule follows the optimizer's steps; a factor of the user's own") {
  Accelerator accelerator(alone(2));
  torch::nn::Linear net(1, 1);
  torch::optim::AdamW adam(net->parameters(), 1.0);
  auto warmup = get_scheduler("linear", adam, {.num_warmup_steps = 2, .num_training_steps = 4});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adam, warmup);
  std::vector<double> rates;
  for (int i = 0; i < 8; ++i) {
    const auto micro_batch = accelerator.accumulate(model);
    accelerator.backward(model(torch::ones({1, 1})).sum());
    optimizer.step();
    scheduler.step();
    rates.push_back(rate_of(adam, 0));
  }
  CHECK(rates == std::vector<double>{0, 0.5, 0.5, 1, 1, 0.5, 0.5, 0});
  CHECK(scheduler.state().step == 4);
  scheduler.load_state(LrScheduleState{.step = 1, .base_rates = {1.0}});
  CHECK(rate_of(adam, 0) == 0.5);
  CHECK_THROWS_WITH(scheduler.load_state(LrScheduleState{.step = 1, .base_rates = {1.0, 2.0}}),
                    ContainsSubstring("expected 1 parameter groups, got 2"));

  torch::optim::SGD sgd(net->parameters(), 3.0);
  auto halving = accelerator.prepare(sgd, LambdaLR(sgd, [](int64_t step) { return std::pow(0.5, step); }));
  std::get<1>(halving).step();
  CHECK(rate_of(sgd, 0) == 1.5);
}

TEST_CASE("ReduceLROnPlateau is prepared as torch has it") {
  Accelerator accelerator(alone(1));
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::ReduceLROnPlateauScheduler plateau(sgd, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F,
                                                   /*patience=*/1);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, plateau);
  std::vector<double> rates;
  for (const float loss : {1.0F, 1.0F, 1.0F, 1.0F, 1.0F}) {
    scheduler.step(loss);
    rates.push_back(rate_of(sgd, 0));
  }
  CHECK(rates == std::vector<double>{1, 1, 0.5, 0.5, 0.25});
}

TEST_CASE("names and options that can't be are errors that say what to write") {
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.5);
  const auto error = [&](std::string_view name, const SchedulerOptions& options) {
    return error_of([&] { get_scheduler(name, sgd, options); });
  };
  CHECK_THAT(error("cosine-with-restart", {}), ContainsSubstring("Did you mean 'cosine_with_restarts'?"));
  CHECK_THAT(error("banana", {}), ContainsSubstring("expected one of linear, cosine, "));
  CHECK_THAT(error("reduce_lr_on_plateau", {}), ContainsSubstring("ReduceLROnPlateauScheduler"));
  CHECK_THAT(error("linear", {.num_warmup_steps = 3}),
             ContainsSubstring("'linear' needs num_training_steps"));
  CHECK_THAT(
      error("linear", {.num_training_steps = 9, .power = 2}),
      ContainsSubstring("'linear' has no option power. Its options: num_warmup_steps num_training_steps."));
  CHECK_THAT(error("linear", {.num_warmup_steps = -1, .num_training_steps = 9}),
             ContainsSubstring("num_warmup_steps: expected 0 or more, got -1"));
  CHECK_THAT(error("cosine", {.num_training_steps = 0}), ContainsSubstring("num_training_steps: expected 1"));
  CHECK_THAT(error("constant", {.num_warmup_steps = 3}), ContainsSubstring("constant_with_warmup"));
  CHECK_THAT(error("polynomial", {.num_training_steps = 9, .lr_end = 0.5}), ContainsSubstring("lr_end"));
  CHECK_THAT(error("polynomial", {.num_warmup_steps = 9, .num_training_steps = 9}),
             ContainsSubstring("more than num_warmup_steps 9, got 9"));
  CHECK_THAT(error("cosine_with_min_lr", {.num_training_steps = 9}), ContainsSubstring("got neither"));
  CHECK_THAT(error("cosine_with_min_lr", {.num_training_steps = 9, .min_lr = 0.1, .min_lr_rate = 0.1}),
             ContainsSubstring("got both"));
  CHECK_THAT(error("warmup_stable_decay", {.num_training_steps = 9}),
             ContainsSubstring("no num_decay_steps"));
  CHECK_THAT(error("warmup_stable_decay", {.num_decay_steps = 9}), ContainsSubstring("num_decay_steps only"));
  CHECK(rate_of(sgd, 0) == 0.5);  // a refused schedule leaves the rates alone
}
