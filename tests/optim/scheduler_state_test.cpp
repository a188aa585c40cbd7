#include "accelerate/optim/scheduler_state.h"

#include <limits>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/optim/lr_schedules.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;

namespace {

torch::optim::SGD make_sgd(double first = 0.1, double second = 0.03) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()});
  groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()},
                      std::make_unique<torch::optim::SGDOptions>(second));
  return torch::optim::SGD(groups, torch::optim::SGDOptions(first));
}

std::vector<double> rates(torch::optim::Optimizer& optimizer) {
  std::vector<double> out;
  for (const auto& group : optimizer.param_groups()) out.push_back(group.options().get_lr());
  return out;
}

void copy_rates(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (size_t i = 0; i < 2; ++i) to.param_groups()[i].options().set_lr(rates(from)[i]);
}

// A user's own schedule.
class Halves final : public torch::optim::LRScheduler {
 public:
  using LRScheduler::LRScheduler;

 private:
  std::vector<double> get_lrs() override {
    auto out = get_current_lrs();
    for (double& rate : out) rate *= step_count_ % 3 == 2 ? 0.5 : 1.0;
    return out;
  }
};

// Saves after every number of steps in turn and goes on in a schedule over an optimizer with other rates.
template <class Make, class Step>
void check_resumes(const Make& make, const Step& step, int64_t steps) {
  for (int64_t stop = 0; stop <= steps; ++stop) {
    auto whole = make_sgd(), other = make_sgd(0.7, 0.2);
    auto scheduler = make(whole);
    for (int64_t i = 0; i < stop; ++i) step(scheduler, i);
    const std::string state = scheduler_state(scheduler);
    auto resumed = make(other);
    copy_rates(whole, other);  // as the optimizer's own state does
    load_scheduler_state(resumed, state);
    CHECK(scheduler_state(resumed) == state);
    CHECK(rates(other) == rates(whole));
    for (int64_t i = stop; i < steps; ++i) {
      step(scheduler, i);
      step(resumed, i);
      INFO("saved after " << stop << ", step " << i);
      CHECK(rates(other) == rates(whole));
    }
    CHECK(rates(whole) != std::vector<double>{0.1, 0.03});
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("schedules go on as if nothing had happened") {
  const auto plain = [](auto& scheduler, int64_t) { scheduler.step(); };
  SECTION("StepLR") {
    check_resumes([](auto& optimizer) { return torch::optim::StepLR(optimizer, 3, 0.5); }, plain, 11);
  }
  SECTION("cosine") {
    check_resumes(
        [](auto& optimizer) {
          return get_scheduler("cosine", optimizer, {.num_warmup_steps = 3, .num_training_steps = 12});
        },
        plain, 11);
  }
  SECTION("a user's own") {
    check_resumes([](auto& optimizer) { return Halves(optimizer); }, plain, 7);
  }
  SECTION("ReduceLROnPlateau") {
    // Improves, stays flat past the patience, cools down while flat, improves, is flat again.
    const std::vector<float> metrics = {5, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3.5, 3, 2};
    check_resumes(
        [](auto& optimizer) {
          return torch::optim::ReduceLROnPlateauScheduler(
              optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, 1, 1e-4,
              torch::optim::ReduceLROnPlateauScheduler::rel, 2);
        },
        [&](auto& scheduler, int64_t i) { scheduler.step(metrics.at(static_cast<size_t>(i))); },
        static_cast<int64_t>(metrics.size()));
  }
}

TEST_CASE("a LambdaLR brings the rates that it started from") {
  auto sgd = make_sgd(), other = make_sgd(0.7, 0.2);
  auto scheduler = get_scheduler("linear", sgd, {.num_training_steps = 8});
  for (int i = 0; i < 3; ++i) scheduler.step();
  auto resumed = get_scheduler("linear", other, {.num_training_steps = 8});
  load_scheduler_state(resumed, scheduler_state(scheduler));
  CHECK(rates(other) == rates(sgd));
}

TEST_CASE("a best metric that JSON has no number for") {
  for (const float best : {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::denorm_min(), 0.1F}) {
    auto sgd = make_sgd(), other = make_sgd();
    torch::optim::ReduceLROnPlateauScheduler scheduler(sgd), resumed(other);
    scheduler.step(best);
    const std::string state = scheduler_state(scheduler);
    load_scheduler_state(resumed, state);
    CHECK(scheduler_state(resumed) == state);
  }
  auto sgd = make_sgd();
  torch::optim::ReduceLROnPlateauScheduler scheduler(sgd);
  scheduler.step(-std::numeric_limits<float>::infinity());
  CHECK_THAT(scheduler_state(scheduler), ContainsSubstring("\"best\": \"-inf\""));
}

TEST_CASE("states that do not fit a schedule change nothing and say what was expected") {
  auto sgd = make_sgd();
  torch::optim::StepLR step(sgd, 2);
  torch::optim::ReduceLROnPlateauScheduler plateau(sgd);
  auto linear = get_scheduler("linear", sgd, {.num_training_steps = 8});
  step.step();
  plateau.step(1);
  const std::string step_state = scheduler_state(step), plateau_state = scheduler_state(plateau),
                    linear_state = scheduler_state(linear);
  const auto error = [&](auto& scheduler, const std::string& json) {
    const std::string before = scheduler_state(scheduler);
    const std::string text = error_of<CheckpointError>([&] { load_scheduler_state(scheduler, json); });
    CHECK(scheduler_state(scheduler) == before);
    return text;
  };
  CHECK_THAT(error(step, linear_state), ContainsSubstring("expected StepLR, got LambdaLR"));
  CHECK_THAT(error(plateau, step_state),
             ContainsSubstring("expected ReduceLROnPlateauScheduler, got StepLR"));
  CHECK_THAT(error(step, replaced(step_state, "version\": 1", "version\": 2")),
             ContainsSubstring("expected format_version 1 at most, got 2"));
  for (const char* value : {"-1", "\"x\"", "1.5", "99999999999"}) {
    CHECK_THAT(error(step, replaced(step_state, "count\": 1", concat("count\": ", value))),
               ContainsSubstring(concat("'step_count' is ", value)));
  }
  for (size_t length = 0; length < plateau_state.size(); ++length) {
    CHECK_THAT(error(plateau, plateau_state.substr(0, length)), ContainsSubstring("can't be read"));
  }
  CHECK_THAT(error(plateau, replaced(plateau_state, "best\": 1.0", "best\": \"good\"")),
             ContainsSubstring("the best metric is \"good\""));
  CHECK_THAT(error(plateau, replaced(plateau_state, "last_epoch", "epoch")),
             ContainsSubstring("can't be read"));
  torch::optim::SGD one({torch::zeros({1}).requires_grad_()}, 0.1);
  auto other = get_scheduler("linear", one, {.num_training_steps = 8});
  CHECK_THAT(error(other, linear_state), ContainsSubstring("expected 1 parameter groups, got 2"));
}
