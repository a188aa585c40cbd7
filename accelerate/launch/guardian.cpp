#include "accelerate/launch/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/shared_memory_names.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr const char* kProcessName = "accel-guard";
constexpr pid_t kFinished = 0;  // message: all is well, go
constexpr int kDeathTimeoutMs = 2000;
constexpr int kEndTimeoutMs = 1000;

// Everything below runs in the forked process, possibly of a program with threads: system calls only, no
// allocation.

void close_all_but(int kept) {
  const int null_fd = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null_fd, fd);
  const long first = 3;
  const bool closed = (kept <= first || ::syscall(SYS_close_range, first, kept - 1, 0) == 0) &&
                      ::syscall(SYS_close_range, kept + 1, ~0U, 0) == 0;
  if (closed) return;
  const long limit = ::sysconf(_SC_OPEN_MAX);  // before Linux 5.9
  for (long fd = first; fd < (limit > 0 ? limit : 1024); ++fd) {
    if (fd != kept) ::close(static_cast<int>(fd));
  }
}

// Sends a signal to the groups and waits for their leaders to be dead, if only as zombies.
void end_groups(const pid_t* groups, size_t count, int signal_number, int timeout_ms) {
  for (size_t i = 0; i < count; ++i) ::kill(-groups[i], signal_number);
  for (size_t i = 0; i < count; ++i) {
    const auto leader = static_cast<int>(::syscall(SYS_pidfd_open, groups[i], 0));
    if (leader < 0) continue;
    pollfd item{leader, POLLIN, 0};
    ::poll(&item, 1, timeout_ms);
    ::close(leader);
  }
}

[[noreturn]] void guard(int control, pid_t* groups, size_t capacity, const char* prefix, int notice_ms) {
  ::setsid();
  ::prctl(PR_SET_NAME, kProcessName);
  close_all_but(control);
  size_t count = 0;
  for (;;) {
    pid_t message = 0;
    const ssize_t got = ::recv(control, &message, sizeof message, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof message)) break;  // the launcher is gone
    if (message == kFinished) ::_exit(0);
    if (message > 0 && count < capacity) groups[count++] = message;
    if (message < 0) {
      for (size_t i = 0; i < count; ++i) {
        if (groups[i] == -message) groups[i--] = groups[--count];
      }
    }
  }
  constexpr int kOnlyWait = 0;
  if (notice_ms > 0) end_groups(groups, count, kOnlyWait, notice_ms);
  end_groups(groups, count, SIGKILL, kDeathTimeoutMs);
  remove_shared_memory(prefix);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian(int max_groups, const std::string& job_id, std::chrono::milliseconds notice) {
  // A socket pair keeps messages whole and, unlike a pipe, lets us write without risking SIGPIPE.
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw LaunchError({.what = concat("socketpair: ", errno_text(errno)), .hint = descriptor_hint(errno)});
  }
  UniqueFd guard_end(ends[0]);
  control_.reset(ends[1]);
  std::vector<pid_t> groups(static_cast<size_t>(max_groups));
  const std::string prefix = shared_memory_prefix(job_id);

  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0)
    guard(guard_end.get(), groups.data(), groups.size(), prefix.c_str(), static_cast<int>(notice.count()));
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ < 0)
    throw LaunchError({.what = concat("can't start the launcher's guard: ", errno_text(fork_errno))});
}

Guardian::~Guardian() {
  send(kFinished);
  // Its end of the socket closes as it ends, in well under a millisecond; a stopped one is not waited for.
  pollfd item{control_.get(), 0, 0};
  if (::poll(&item, 1, kEndTimeoutMs) <= 0) ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t group) {
  send(group);
}

void Guardian::forget(pid_t group) {
  send(-group);
}

void Guardian::send(pid_t message) {
  [[maybe_unused]] const ssize_t sent = ::send(control_.get(), &message, sizeof message, MSG_NOSIGNAL);
}

}  // namespace accelerate::detail
