#include "accelerate/launch/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

// A signal handler has no argument of ours, so this one number has to be process-wide.
std::atomic<int> active_write_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const ssize_t written = ::write(active_write_fd.load(), &byte, 1);
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe(std::span<const int> signals) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    throw LaunchError({.what = concat("pipe: ", errno_text(errno)), .hint = descriptor_hint(errno)});
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  int none = -1;
  if (!active_write_fd.compare_exchange_strong(none, write_end_.get())) {
    throw LaunchError({.what = "another launch in this process already handles its signals",
                       .hint = "Set handle_signals to false in all launches but one."});
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigfillset(&action.sa_mask);
  // No SA_RESTART: no system call may go on waiting once the user presses Ctrl-C.
  for (const int number : signals) {
    struct sigaction before {};
    if (::sigaction(number, &action, &before) == 0) former_.emplace_back(number, before);
  }
}

SignalPipe::~SignalPipe() {
  for (const auto& [number, action] : former_) ::sigaction(number, &action, nullptr);
  active_write_fd.store(-1);
}

std::optional<int> SignalPipe::next() {
  unsigned char byte = 0;
  if (::read(read_end_.get(), &byte, 1) == 1) return byte;
  return std::nullopt;
}

}  // namespace accelerate::detail
