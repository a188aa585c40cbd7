#pragma once

#include <memory>

#include "accelerate/strategy/strategy.h"

namespace c10d {
class CommHookInterface;
}

namespace accelerate::detail {

/// @throws ConfigError naming the option of `options` about hooks that can't be.
void check_comm_hook_options(const DdpOptions& options);

/// The hook that `options` ask for, null for the engine's own mean.
std::unique_ptr<CommHook> make_comm_hook(const DdpOptions& options);

/// `hook` in the form that c10d's engine takes.
std::unique_ptr<c10d::CommHookInterface> as_c10d_hook(std::unique_ptr<CommHook> hook,
                                                      std::shared_ptr<Communicator> communicator);

}  // namespace accelerate::detail
