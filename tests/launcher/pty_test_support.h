#pragma once

// A program with a terminal of its own, and somebody who types.

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "launch_test_support.h"

namespace accelerate::testing {

class TerminalRun {
 public:
  TerminalRun(const std::vector<std::string>& arguments, int columns,
              const std::string& terminal_type = "xterm") {
    // Everything is made before the fork: after it, only exec.
    std::vector<std::string> words = {bin("accel")};
    words.insert(words.end(), arguments.begin(), arguments.end());
    EnvVars variables = EnvVars::from_process();
    variables.set("TERM", terminal_type);
    variables.set("CUDA_VISIBLE_DEVICES", "-1");
    std::vector<std::string> environment;
    for (const auto& [name, value] : variables.values()) environment.push_back(name + "=" + value);
    std::vector<char*> argv = pointers(words);
    std::vector<char*> envp = pointers(environment);
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::execve(argv[0], argv.data(), envp.data());
      ::_exit(127);
    }
    if (pid_ < 0) throw std::runtime_error("forkpty");
    master_.reset(master);
    before_ = mode();
  }
  ~TerminalRun() {
    if (!status_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  TerminalRun(const TerminalRun&) = delete;
  TerminalRun& operator=(const TerminalRun&) = delete;

  void type(const std::string& keys) {
    if (::write(master_.get(), keys.data(), keys.size()) != static_cast<ssize_t>(keys.size())) {
      throw std::runtime_error("write to the terminal");
    }
  }
  void signal(int number) { ::kill(pid_, number); }
  const std::string& screen() const { return screen_; }

  /// Reads until `text` has come after what was waited for last.
  bool wait_for(const std::string& text) {
    const Deadline deadline = Deadline::after(kLimit);
    for (;;) {
      const size_t at = screen_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (deadline.expired() || !read_some(deadline)) return false;
    }
  }

  /// Exit code, or 128 + signal; nothing while it runs.
  std::optional<int> finish() { return finish_within(kLimit); }
  std::optional<int> finish_within(std::chrono::milliseconds limit) {
    const Deadline deadline = Deadline::after(limit);
    while (!status_ && !deadline.expired()) {
      read_some(Deadline::after(std::chrono::milliseconds(20)));
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
    }
    while (read_some(Deadline::after(std::chrono::milliseconds(20)))) {
    }
    return status_;
  }

  bool mode_is_as_before() const {
    const termios now = mode();
    return now.c_lflag == before_.c_lflag && now.c_iflag == before_.c_iflag &&
           now.c_oflag == before_.c_oflag && std::memcmp(now.c_cc, before_.c_cc, sizeof now.c_cc) == 0;
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  }

  // The terminal's mode can be asked for at its other end.
  termios mode() const {
    termios out{};
    ::tcgetattr(master_.get(), &out);
    return out;
  }

  bool read_some(const Deadline& deadline) {
    pollfd item{master_.get(), POLLIN, 0};
    if (::poll(&item, 1, deadline.poll_timeout_ms()) <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(master_.get(), buffer, sizeof buffer);
    if (got <= 0) return false;
    screen_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  UniqueFd master_;
  pid_t pid_ = -1;
  termios before_{};
  std::string screen_;
  size_t seen_ = 0;
  std::optional<int> status_;
};

}  // namespace accelerate::testing
