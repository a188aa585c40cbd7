#include "launcher/terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "accelerate/core/error.h"

namespace accelerate::cli {
namespace {

// The bytes of an arrow key come together; after this long, an Esc was the key itself.
constexpr int kSequenceTimeoutMs = 50;
constexpr int kNoByte = -1;
constexpr int kGone = -2;
constexpr std::array<int, 5> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGABRT};

// For the signal handler, which can be given nothing.
termios saved_mode;
std::array<struct sigaction, kSignals.size()> saved_actions;

extern "C" void restore_and_end(int signal_number) {
  const int saved_errno = errno;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_mode);
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, "\n", 1);
  // The default action is back (SA_RESETHAND) and takes place when this handler returns.
  ::raise(signal_number);
  errno = saved_errno;
}

void watch_signals() {
  struct sigaction action {};
  action.sa_handler = restore_and_end;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &saved_actions[i]);
    // What we were started to ignore (nohup), we go on ignoring.
    if (saved_actions[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

void forget_signals() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &saved_actions[i], nullptr);
}

winsize window_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

}  // namespace

bool Terminal::usable(const EnvVars& variables) {
  const std::string type = variables.get("TERM").value_or("");
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0 && !type.empty() && type != "dumb";
}

Terminal::Terminal() {
  if (::tcgetattr(STDIN_FILENO, &saved_mode) != 0) {
    throw ConfigError({.what = "the terminal does not answer", .got = errno_text(errno)});
  }
  termios mode = saved_mode;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  mode.c_iflag &= ~static_cast<tcflag_t>(IXON);
  mode.c_iflag |= ICRNL;
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  watch_signals();
  // Not TCSAFLUSH: what was typed ahead counts.
  if (::tcsetattr(STDIN_FILENO, TCSADRAIN, &mode) != 0) {
    const std::string reason = errno_text(errno);
    forget_signals();
    throw ConfigError({.what = "the terminal can't be set up for menus", .got = reason});
  }
}

Terminal::~Terminal() {
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_mode);
  forget_signals();
}

int Terminal::read_byte(int timeout_ms) {
  for (;;) {
    pollfd item{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&item, 1, timeout_ms);
    if (ready == 0) return kNoByte;
    unsigned char byte = 0;
    const ssize_t got = ready < 0 ? -1 : ::read(STDIN_FILENO, &byte, 1);
    if (got == 1) return byte;
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return kGone;
  }
}

// What follows Esc: "[A" or "OA" for an arrow, "[1~", "[1;5A" and the like for others.
Key Terminal::read_sequence() {
  const int first = read_byte(kSequenceTimeoutMs);
  if (first == kNoByte || first == kGone) return {Key::Kind::kEscape};
  if (first != '[' && first != 'O') return {Key::Kind::kOther};
  int parameter = 0;
  for (int count = 0; count < 16; ++count) {
    const int byte = read_byte(kSequenceTimeoutMs);
    if (byte >= '0' && byte <= '9') {
      parameter = parameter * 10 % 1000 + (byte - '0');
      continue;
    }
    if (byte == ';') continue;
    if (byte == 'A') return {Key::Kind::kUp};
    if (byte == 'B') return {Key::Kind::kDown};
    if (byte == 'H' || (byte == '~' && (parameter == 1 || parameter == 7))) return {Key::Kind::kHome};
    if (byte == 'F' || (byte == '~' && (parameter == 4 || parameter == 8))) return {Key::Kind::kEnd};
    break;
  }
  return {Key::Kind::kOther};
}

Key Terminal::read_key() {
  const int byte = read_byte(-1);
  switch (byte) {
    case kGone:
    case 4:
      return {Key::Kind::kEndOfInput};
    case 3:
      return {Key::Kind::kInterrupt};
    case '\n':
    case '\r':
      return {Key::Kind::kEnter};
    case 8:
    case 127:
      return {Key::Kind::kBackspace};
    case 21:
      return {Key::Kind::kClearLine};
    case 27:
      return read_sequence();
    default:
      if (byte >= ' ' && byte < 256) return {Key::Kind::kText, static_cast<char>(byte)};
      return {Key::Kind::kOther};
  }
}

void Terminal::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return;  // the terminal is gone; the next read says so
    text.remove_prefix(static_cast<size_t>(count));
  }
}

int Terminal::columns() const {
  const int columns = window_size().ws_col;
  return columns > 0 ? columns : 80;
}

int Terminal::rows() const {
  const int rows = window_size().ws_row;
  return rows > 0 ? rows : 24;
}

}  // namespace accelerate::cli
