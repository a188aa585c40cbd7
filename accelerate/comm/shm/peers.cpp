#include "accelerate/comm/shm/peers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "accelerate/core/strings.h"

namespace accelerate::shm {

uint64_t process_start_ticks(int pid) {
  const UniqueFd fd(::open(concat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text;
  const ssize_t got = fd ? ::read(fd.get(), text.data(), text.size()) : -1;
  if (got <= 0) return 0;
  // "pid (name) state ...": the name may hold anything, so count fields after the last bracket.
  const std::string_view line(text.data(), static_cast<size_t>(got));
  const size_t bracket = line.rfind(')');
  if (bracket == std::string_view::npos) return 0;
  const std::vector<std::string> fields = split(line.substr(bracket + 1), ' ');
  constexpr size_t kStartTime = 20;  // field 22 of proc(5), counted from the blank after the bracket
  const auto ticks = fields.size() > kStartTime ? parse_int(fields[kStartTime]) : std::nullopt;
  return ticks ? static_cast<uint64_t>(*ticks) : 0;
}

Peers::Peers(std::vector<RankBlock*> blocks, int rank) : blocks_(std::move(blocks)), rank_(rank) {
  RankBlock& mine = own();
  mine.pid = ::getpid();
  mine.start_ticks = process_start_ticks(mine.pid);
  mine.state.store(RankState::kHere, std::memory_order_release);
}

void Peers::watch() {
  processes_.resize(blocks_.size());
  for (int peer = 0; peer < size(); ++peer) {
    const RankBlock& other = block(peer);
    if (other.state.load(std::memory_order_acquire) == RankState::kAbsent || other.pid == own().pid) continue;
    UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, other.pid, 0)));
    // Asked after the open: if the number had been given to another process, it would show here.
    if (process && other.start_ticks != 0 && process_start_ticks(other.pid) == other.start_ticks) {
      processes_[static_cast<size_t>(peer)] = std::move(process);
    }
  }
}

std::string Peers::why_gone(int peer, bool look_closely) const {
  const RankBlock& other = block(peer);
  switch (other.state.load(std::memory_order_acquire)) {
    case RankState::kLeft:
      return concat("rank ", peer, " left after ", other.operations.load(std::memory_order_relaxed),
                    " operations");
    case RankState::kFailed:
      return concat("rank ", peer, " failed in its operation ",
                    other.operations.load(std::memory_order_relaxed));
    case RankState::kAbsent:
    case RankState::kHere:
      break;
  }
  if (!look_closely || processes_.empty()) return {};
  const UniqueFd& process = processes_[static_cast<size_t>(peer)];
  pollfd item{process.get(), POLLIN, 0};
  if (!process || ::poll(&item, 1, 0) != 1) return {};
  return concat("rank ", peer, " is gone: its process ", other.pid, " has ended");
}

}  // namespace accelerate::shm
