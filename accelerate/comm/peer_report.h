#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "accelerate/comm/store.h"

namespace accelerate::detail {

// Note [Who is missing]
// When a collective fails, the rank that noticed writes into the store which operation it was in, then reads
// what the others wrote. A rank that ended normally left its farewell there; a rank that is stuck elsewhere
// or was killed has written nothing. Nothing is written while all goes well, so a step pays nothing for it.

/// Writes this rank's farewell: what it had done when it left. Never throws.
void report_left(Store& store, int rank, int64_t backward_passes, int64_t operations) noexcept;

/// Writes this rank's failure and says what is known of the others, waiting at most `patience` for their
/// reports: "rank 1 left after 5 backward passes and 1 collective; rank 2 was not heard from (ended, killed,
/// or busy elsewhere)". `known(peer)` is what the caller knows of a rank that did not report, or "". Never
/// throws.
std::string report_failure(Store& store, int rank, int size, const std::string& operation,
                           std::chrono::milliseconds patience,
                           const std::function<std::string(int peer)>& known = {}) noexcept;

/// True if `message` is how gloo, nccl or the store say that a peer is gone or late.
bool looks_like_peer_failure(const std::string& message);

}  // namespace accelerate::detail
