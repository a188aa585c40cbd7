#include "accelerate/optim/lr_schedules.h"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::function<double(int64_t)> factor)
    : LRScheduler(optimizer), factor_(std::move(factor)), base_rates_(get_current_lrs()) {
  step();
}

std::vector<double> LambdaLR::get_lrs() {
  const double factor = factor_(static_cast<int64_t>(step_count_));
  std::vector<double> rates = base_rates_;
  for (double& rate : rates) rate *= factor;
  return rates;
}

void LambdaLR::load_state(const LrScheduleState& state) {
  if (state.base_rates.size() != base_rates_.size() || state.step < 0) {
    throw ConfigError({.what = "the state of a learning-rate schedule does not fit this optimizer",
                       .expected = concat(base_rates_.size(), " parameter groups"),
                       .got = concat(state.base_rates.size(), " at step ", state.step)});
  }
  base_rates_ = state.base_rates;
  step_count_ = static_cast<unsigned>(state.step);
  step();  // sets the rates of step_count_ and counts
}

namespace {

using Factor = std::function<double(int64_t)>;
constexpr double kPi = std::numbers::pi;

// What a schedule is made from: the options, with those that it needs checked, and the rate that they refer
// to.
struct Request {
  const SchedulerOptions& options;
  int64_t warmup;
  int64_t training;  // 0 where a schedule has no end
  double rate;       // the optimizer's default
};

double ratio(int64_t steps, int64_t of) {
  return static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(1, of));
}

// `factor` after the usual linear warm-up.
Factor after_warmup(int64_t warmup, Factor factor) {
  return [=](int64_t step) { return step < warmup ? ratio(step, warmup) : factor(step); };
}

// How much of the time from the end of the warm-up to the end of the training has gone by.
double progress(int64_t step, int64_t warmup, int64_t training) {
  return ratio(step - warmup, training - warmup);
}

double cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(kPi * cycles * 2.0 * progress));
}

Factor constant(const Request&) {
  return [](int64_t) { return 1.0; };
}

Factor constant_with_warmup(const Request& request) {
  return after_warmup(request.warmup, constant(request));
}

Factor linear(const Request& request) {
  return after_warmup(request.warmup, [warmup = request.warmup, training = request.training](int64_t step) {
    return std::max(0.0, ratio(training - step, training - warmup));
  });
}

Factor cosine_schedule(const Request& request) {
  const double cycles = request.options.num_cycles.value_or(0.5);
  return after_warmup(request.warmup,
                      [=, warmup = request.warmup, training = request.training](int64_t step) {
                        return std::max(0.0, cosine(cycles, progress(step, warmup, training)));
                      });
}

Factor cosine_with_restarts(const Request& request) {
  const double cycles = request.options.num_cycles.value_or(1);
  return after_warmup(request.warmup,
                      [=, warmup = request.warmup, training = request.training](int64_t step) {
                        const double done = progress(step, warmup, training);
                        if (done >= 1.0) return 0.0;
                        return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * std::fmod(cycles * done, 1.0))));
                      });
}

Factor polynomial(const Request& request) {
  const double end = request.options.lr_end.value_or(1e-7);
  const double power = request.options.power.value_or(1.0);
  const double start = request.rate;
  if (!(start > end)) {
    throw ConfigError({.what = "get_scheduler: lr_end of 'polynomial'",
                       .expected = concat("less than the optimizer's rate ", start),
                       .got = concat(end)});
  }
  if (request.training <= request.warmup) {
    throw ConfigError({.what = "get_scheduler: num_training_steps of 'polynomial'",
                       .expected = concat("more than num_warmup_steps ", request.warmup),
                       .got = concat(request.training)});
  }
  return after_warmup(request.warmup,
                      [=, warmup = request.warmup, training = request.training](int64_t step) {
                        if (step > training) return end / start;
                        const double left = 1 - progress(step, warmup, training);
                        return ((start - end) * std::pow(left, power) + end) / start;
                      });
}

Factor inverse_sqrt(const Request& request) {
  const int64_t warmup = request.warmup;
  const int64_t timescale = request.options.timescale.value_or(warmup > 0 ? warmup : 10000);
  return after_warmup(warmup, [=](int64_t step) {
    return 1.0 / std::sqrt(static_cast<double>(step + timescale - warmup) / static_cast<double>(timescale));
  });
}

double lowest_factor(const Request& request) {
  const SchedulerOptions& options = request.options;
  if (options.min_lr.has_value() == options.min_lr_rate.has_value()) {
    throw ConfigError({.what = "get_scheduler: a schedule with a lowest rate",
                       .expected = "one of min_lr and min_lr_rate",
                       .got = options.min_lr.has_value() ? "both" : "neither"});
  }
  return options.min_lr_rate.has_value() ? *options.min_lr_rate : *options.min_lr / request.rate;
}

Factor cosine_with_min_lr(const Request& request) {
  const double cycles = request.options.num_cycles.value_or(0.5);
  const double lowest = lowest_factor(request);
  return after_warmup(
      request.warmup, [=, warmup = request.warmup, training = request.training](int64_t step) {
        return std::max(0.0, cosine(cycles, progress(step, warmup, training)) * (1 - lowest) + lowest);
      });
}

// Its warm-up begins above 0 and, like its decay, is one step ahead of the other schedules'.
Factor cosine_warmup_with_min_lr(const Request& request) {
  const double cycles = request.options.num_cycles.value_or(0.5);
  const double lowest = lowest_factor(request);
  const std::optional<double> first = request.options.warmup_lr_rate;
  return [=, warmup = request.warmup, training = request.training](int64_t step) {
    if (step < warmup) {
      return first.has_value() ? *first + (1.0 - *first) * ratio(step, warmup - 1) : ratio(step + 1, warmup);
    }
    return std::max(0.0, cosine(cycles, progress(step + 1, warmup, training)) * (1 - lowest) + lowest);
  };
}

// From 0 at `progress` 0 to 1 at 1.
double rise(RampShape shape, double progress) {
  switch (shape) {
    case RampShape::kLinear:
      return progress;
    case RampShape::kCosine:
      return 0.5 * (1.0 - std::cos(kPi * progress));
    case RampShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(1.0 - progress);
  }
  return progress;
}

// From 1 down; a cosine makes `cycles` waves of it.
double fall(RampShape shape, double progress, double cycles) {
  switch (shape) {
    case RampShape::kLinear:
      return 1.0 - progress;
    case RampShape::kCosine:
      return cosine(cycles, progress);
    case RampShape::kOneMinusSqrt:
      return 1.0 - std::sqrt(progress);
  }
  return progress;
}

// WSD: Hu et al., "MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training
// Strategies", 2024; the 1-sqrt decay: Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed
// Training Durations", 2024.
Factor warmup_stable_decay(const Request& request) {
  const SchedulerOptions& options = request.options;
  if (!options.num_decay_steps.has_value() ||
      (request.training == 0 && !options.num_stable_steps.has_value())) {
    throw ConfigError(
        {.what = "get_scheduler: 'warmup_stable_decay'",
         .expected = "num_decay_steps, and num_training_steps or num_stable_steps",
         .got = options.num_decay_steps.has_value() ? "num_decay_steps only" : "no num_decay_steps"});
  }
  const int64_t warmup = request.warmup;
  const int64_t decay = *options.num_decay_steps;
  const int64_t stable_end = warmup + options.num_stable_steps.value_or(request.training - warmup - decay);
  const RampShape up = options.warmup_type.value_or(RampShape::kLinear);
  const RampShape down = options.decay_type.value_or(RampShape::kCosine);
  const double lowest = options.min_lr_ratio.value_or(0);
  const double cycles = options.num_cycles.value_or(0.5);
  return [=](int64_t step) {
    const auto above_lowest = [=](double part) { return std::max(0.0, part * (1.0 - lowest) + lowest); };
    if (step < warmup) return above_lowest(rise(up, ratio(step, warmup)));
    if (step < stable_end) return 1.0;
    if (step < stable_end + decay) return above_lowest(fall(down, ratio(step - stable_end, decay), cycles));
    return lowest;
  };
}

// One schedule: what it is made by, and which options it uses beyond num_warmup_steps.
struct Schedule {
  std::string_view name;
  Factor (*make)(const Request&);
  bool warms_up;
  bool needs_training_steps;
  std::string_view options;  // a blank before and after each
};

constexpr Schedule kSchedules[] = {
    {"linear", linear, true, true, " num_training_steps "},
    {"cosine", cosine_schedule, true, true, " num_training_steps num_cycles "},
    {"cosine_with_restarts", cosine_with_restarts, true, true, " num_training_steps num_cycles "},
    {"polynomial", polynomial, true, true, " num_training_steps lr_end power "},
    {"constant", constant, false, false, " num_training_steps "},
    {"constant_with_warmup", constant_with_warmup, true, false, " num_training_steps "},
    {"inverse_sqrt", inverse_sqrt, true, false, " num_training_steps timescale "},
    {"cosine_with_min_lr", cosine_with_min_lr, true, true,
     " num_training_steps num_cycles min_lr min_lr_rate "},
    {"cosine_warmup_with_min_lr", cosine_warmup_with_min_lr, true, true,
     " num_training_steps num_cycles min_lr min_lr_rate warmup_lr_rate "},
    {"warmup_stable_decay", warmup_stable_decay, true, false,
     " num_training_steps num_cycles num_decay_steps num_stable_steps warmup_type decay_type min_lr_ratio "},
};

// The options that are set, by name.
std::vector<std::string> options_set(const SchedulerOptions& options) {
  std::vector<std::string> names;
  const auto note = [&](const char* name, const auto& option) {
    if (option.has_value()) names.emplace_back(name);
  };
  note("num_training_steps", options.num_training_steps);
  note("num_cycles", options.num_cycles);
  note("lr_end", options.lr_end);
  note("power", options.power);
  note("timescale", options.timescale);
  note("min_lr", options.min_lr);
  note("min_lr_rate", options.min_lr_rate);
  note("warmup_lr_rate", options.warmup_lr_rate);
  note("num_decay_steps", options.num_decay_steps);
  note("num_stable_steps", options.num_stable_steps);
  note("warmup_type", options.warmup_type);
  note("decay_type", options.decay_type);
  note("min_lr_ratio", options.min_lr_ratio);
  return names;
}

void check_counts(const SchedulerOptions& options) {
  const auto check = [](const char* name, std::optional<int64_t> steps, int64_t least) {
    if (!steps.has_value() || *steps >= least) return;
    throw ConfigError({.what = concat("get_scheduler: ", name),
                       .expected = concat(least, " or more"),
                       .got = concat(*steps)});
  };
  check("num_warmup_steps", options.num_warmup_steps, 0);
  check("num_training_steps", options.num_training_steps, 1);
  check("num_decay_steps", options.num_decay_steps, 0);
  check("num_stable_steps", options.num_stable_steps, 0);
  check("timescale", options.timescale, 1);
}

void check_options(const Schedule& schedule, const SchedulerOptions& options) {
  for (const std::string& name : options_set(options)) {
    if (schedule.options.find(" " + name + " ") == std::string_view::npos) {
      throw ConfigError({.what = concat("get_scheduler: '", schedule.name, "' has no option ", name),
                         .hint = concat("Its options:", schedule.warms_up ? " num_warmup_steps" : "",
                                        schedule.options.substr(0, schedule.options.size() - 1), ".")});
    }
  }
  check_counts(options);
  if (!schedule.warms_up && options.num_warmup_steps > 0) {
    throw ConfigError({.what = concat("get_scheduler: '", schedule.name, "' has no warm-up"),
                       .hint = concat("Say '", schedule.name, "_with_warmup'.")});
  }
  if (schedule.needs_training_steps && !options.num_training_steps.has_value()) {
    throw ConfigError({.what = concat("get_scheduler: '", schedule.name, "' needs num_training_steps"),
                       .hint = "Say how many optimizer steps the training takes: epochs x loader.size() / "
                               "gradient_accumulation_steps, rounded up per epoch."});
  }
}

const Schedule& find_schedule(std::string_view name) {
  const auto found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                  [&](const Schedule& schedule) { return schedule.name == name; });
  if (found != std::end(kSchedules)) return *found;
  if (name == "reduce_lr_on_plateau") {
    throw ConfigError(
        {.what = "get_scheduler: 'reduce_lr_on_plateau' steps with a metric and is a type of its own",
         .hint = "Give a torch::optim::ReduceLROnPlateauScheduler to prepare()."});
  }
  const std::vector<std::string> names = scheduler_names();
  const std::optional<std::string> near = nearest_name(name, names);
  throw ConfigError({.what = concat("get_scheduler: there is no schedule '", name, "'"),
                     .expected = "one of " + join(names, ", "),
                     .hint = near.has_value() ? concat("Did you mean '", *near, "'?") : ""});
}

}  // namespace

std::vector<std::string> scheduler_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : kSchedules) names.emplace_back(schedule.name);
  return names;
}

LambdaLR get_scheduler(std::string_view name, torch::optim::Optimizer& optimizer,
                       const SchedulerOptions& options) {
  const Schedule& schedule = find_schedule(name);
  check_options(schedule, options);
  return {optimizer, schedule.make({.options = options,
                                    .warmup = options.num_warmup_steps,
                                    .training = options.num_training_steps.value_or(0),
                                    .rate = optimizer.defaults().get_lr()})};
}

}  // namespace accelerate
