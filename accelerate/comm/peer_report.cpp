#include "accelerate/comm/peer_report.h"

#include <array>
#include <string_view>
#include <thread>

#include "accelerate/core/deadline.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

std::string left_key(int rank) {
  return concat("accelerate/left/", rank);
}
std::string failure_key(int rank) {
  return concat("accelerate/failure/", rank);
}

std::string counted(int64_t number, const char* name, const char* plural) {
  return concat(number, " ", name, number == 1 ? "" : plural);
}

}  // namespace

void report_left(Store& store, int rank, int64_t backward_passes, int64_t operations) noexcept {
  try {
    const std::string passes =
        backward_passes == 0 ? "" : concat(counted(backward_passes, "backward pass", "es"), " and ");
    store.set(left_key(rank), concat("left after ", passes, counted(operations, "collective", "s")));
  } catch (const std::exception&) {  // the rank that held the store left first; nobody is there to read it
  }
}

std::string report_failure(Store& store, int rank, int size, const std::string& operation,
                           std::chrono::milliseconds patience,
                           const std::function<std::string(int peer)>& known) noexcept {
  try {
    store.set(failure_key(rank), operation);
    const Deadline deadline = Deadline::after(patience);
    std::vector<std::string> reports(static_cast<size_t>(size));
    for (bool complete = false; !complete;) {
      complete = true;
      for (int peer = 0; peer < size; ++peer) {
        auto& text = reports[static_cast<size_t>(peer)];
        if (peer == rank || !text.empty()) continue;
        if (store.has(left_key(peer))) {
          text = concat("rank ", peer, " ", *store.get(left_key(peer), patience));
        } else if (store.has(failure_key(peer))) {
          text = concat("rank ", peer, " also failed, in ", *store.get(failure_key(peer), patience));
        } else {
          complete = false;
        }
      }
      if (deadline.expired()) break;
      if (!complete) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::vector<int> silent;
    std::vector<std::string> parts;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      std::string text = reports[static_cast<size_t>(peer)];
      if (text.empty() && known) text = known(peer);
      if (text.empty()) {
        silent.push_back(peer);
      } else {
        parts.push_back(text);
      }
    }
    if (!silent.empty()) {
      parts.insert(parts.begin(), concat(format_ranks(silent), silent.size() == 1 ? " was" : " were",
                                         " not heard from (ended, killed, or busy elsewhere)"));
    }
    return join(parts, "; ");
  } catch (const std::exception&) {
    return "rank 0, which holds the job's store, is gone";
  }
}

bool looks_like_peer_failure(const std::string& message) {
  static constexpr std::array<std::string_view, 12> kSigns = {
      "closed by peer", "Connection reset", "Timed out",       "timed out",
      "timeout",        "Broken pipe",      "gloo/transport",  "NCCL error",
      "remote process", "Socket Timeout",   "ncclRemoteError", "failed to recv"};
  for (const std::string_view sign : kSigns) {
    if (message.find(sign) != std::string::npos) return true;
  }
  return false;
}

}  // namespace accelerate::detail
