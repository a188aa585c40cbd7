#pragma once

#include "accelerate/comm/backends.h"
#include "accelerate/comm/communicator.h"

namespace accelerate::detail {

/// A group of several ranks over c10d's back ends. Collective: all ranks must be at it.
std::shared_ptr<Communicator> make_c10d_communicator(Store store, const BackendRequest& request,
                                                     const CommunicatorOptions& options, Logger& logger);

}  // namespace accelerate::detail
