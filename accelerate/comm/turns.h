#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "accelerate/comm/process_context.h"

namespace accelerate {

/// Who goes first in first_then_others().
enum class First {
  kMain,       ///< rank 0 of the job
  kLocalMain,  ///< the first rank of each machine
};

/// Runs `body` on the first rank while the others wait, then on these: the first one downloads or converts,
/// the others find it done. Waiting has no limit of its own, however long the body takes: who waits says so
/// every `progress`, and is told when the first rank's body threw. Collective over the job, or over each
/// machine's ranks.
/// @throws what `body` throws; on the waiting ranks an Error with the first rank's text.
void first_then_others(const ProcessContext& context, First first, const std::function<void()>& body,
                       std::chrono::milliseconds progress = std::chrono::seconds(30));

}  // namespace accelerate
