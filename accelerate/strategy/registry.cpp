// The only place that compares a strategy's name.
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/comm_hooks_internal.h"
#include "accelerate/strategy/ddp.h"
#include "accelerate/strategy/single.h"
#include "accelerate/strategy/strategy.h"

namespace accelerate {

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const ProcessContext& context) {
  detail::check_comm_hook_options(options.ddp);  // of use to several ranks alone, but wrong on one too
  const bool several = context.topology.world_size > 1;
  const std::string name = options.name == "auto" ? (several ? "ddp" : "single") : options.name;
  if (name == "ddp" && several) return std::make_unique<DdpStrategy>(context, options.ddp);
  if (name == "ddp" || (name == "single" && !several)) return std::make_unique<SingleStrategy>();
  if (name == "single") {
    throw ConfigError({.what = "strategy 'single'",
                       .expected = "one rank",
                       .got = std::to_string(context.topology.world_size),
                       .hint = "Use 'auto' or 'ddp', or start one process."});
  }
  const std::vector<std::string> names = {"auto", "single", "ddp"};
  const auto near = nearest_name(name, names);
  throw ConfigError({.what = "strategy",
                     .expected = concat("one of ", join(names, ", ")),
                     .got = concat("'", name, "'"),
                     .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

}  // namespace accelerate
