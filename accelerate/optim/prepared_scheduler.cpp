#include "accelerate/optim/prepared_scheduler.h"

#include "accelerate/core/error.h"

namespace accelerate::detail {
namespace {

struct Rates : torch::optim::LRScheduler {
  static std::vector<double> of(const torch::optim::LRScheduler& scheduler) {
    return (scheduler.*(&Rates::get_current_lrs))();
  }
};

}  // namespace

std::vector<std::shared_ptr<OptimizerCore>> optimizers_of(
    const torch::optim::LRScheduler& scheduler,
    const std::vector<std::shared_ptr<OptimizerCore>>& optimizers) {
  for (const auto& core : optimizers) {
    auto& groups = core->optimizer().param_groups();
    if (groups.empty()) continue;
    auto& options = groups[0].options();
    const double rate = options.get_lr();
    const double probe = rate + 1.0;
    options.set_lr(probe);
    const std::vector<double> seen = Rates::of(scheduler);
    options.set_lr(rate);
    if (!seen.empty() && seen[0] == probe) return {core};
  }
  throw ConfigError(
      {.what = "the scheduler's optimizer is none of the prepared ones",
       .hint = "Give that optimizer to prepare() too, as the variable that the scheduler was built with: "
               "std::move(optimizer) would leave the scheduler with an empty one."});
}

}  // namespace accelerate::detail
