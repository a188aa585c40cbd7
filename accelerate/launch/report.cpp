#include "accelerate/launch/report.h"

#include <signal.h>

#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr size_t kNamedRanks = 8;  // of more, only the number is told

std::string was(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? " was " : " were ";
}

std::string likely_cause(const WaitStatus& status) {
  if (status.signal == SIGKILL) return " (maybe out of memory)";
  if (status.signal == SIGBUS) return " (maybe /dev/shm is full)";
  if (status.exit_code == static_cast<int>(ExitCode::kCommError)) return " (it lost its peers)";
  if (status.exit_code == static_cast<int>(ExitCode::kPreempted))
    return " (it was asked to end, and its state is saved)";
  if (status.core_dumped) return " (core dumped)";
  return {};
}

}  // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  return ranks.size() > kNamedRanks ? concat(ranks.size(), " ranks") : format_ranks(ranks);
}

std::string seconds_text(std::chrono::milliseconds duration) {
  return concat(static_cast<double>(duration.count()) / 1000.0, " s");
}

std::string describe_end(const RankFailure& failure) {
  return concat("rank ", failure.rank, " (pid ", failure.pid, ") ", failure.status.describe(),
                likely_cause(failure.status));
}

std::string describe_peer_stop(const PeerStop& stop, const std::vector<int>& ranks,
                               std::chrono::milliseconds grace) {
  return concat(stop.why, ": stopping ", name_ranks(ranks), " within ", seconds_text(grace));
}

std::string describe_failure(const Supervisor::Outcome& outcome, const Console& console) {
  const RankFailure& failure = *outcome.failure;
  std::string out;
  const std::vector<std::string> errors = console.unseen_errors(failure.local_rank);
  if (!errors.empty()) {
    out += concat("last errors of rank ", failure.rank, ":\n");
    for (const std::string& line : errors) out += concat("  ", line, "\n");
  }
  out += concat("rank ", failure.rank, " (pid ", failure.pid, ", host ", host_name(), ") ",
                failure.status.describe(), likely_cause(failure.status));
  if (!outcome.left_before.empty()) {
    out += concat("; ", name_ranks(outcome.left_before), " had already ended with code 0");
  }
  if (!outcome.stopped.empty()) {
    out += concat("; ", name_ranks(outcome.stopped), was(outcome.stopped), "stopped");
  }
  if (const std::string log = console.log_path(failure.local_rank); !log.empty())
    out += concat("; see ", log);
  return out;
}

std::string describe_starter_failure(const Supervisor::Outcome& outcome, const std::string& starter) {
  const RankFailure& failure = *outcome.failure;
  const std::string who = outcome.named_by_starter ? concat("rank ", *outcome.named_by_starter, " failed")
                                                   : std::string("a rank failed or could not be started");
  return concat(starter, " (pid ", failure.pid, ", host ", host_name(), ") ", failure.status.describe(), ": ",
                who, ", see above");
}

std::string describe_stop(int signal_number, const std::string& who, std::chrono::milliseconds grace) {
  std::string out = concat(signal_name(signal_number), ": stopping ", who, " within ", seconds_text(grace));
  if (signal_number == SIGINT) out += " (again to kill at once)";
  return out;
}

std::string describe_late(const std::string& who, std::chrono::milliseconds grace) {
  return concat(who, " still ran after ", seconds_text(grace), ": killed");
}

std::string describe_restart(int restart, int max_restarts, std::chrono::milliseconds delay) {
  return concat("restart ", restart, " of ", max_restarts, " of all ranks in ", seconds_text(delay));
}

}  // namespace accelerate::detail
