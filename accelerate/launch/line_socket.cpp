#include "accelerate/launch/line_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "accelerate/core/error.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMaxLineBytes = 64 * 1024;
constexpr size_t kMaxUnsentBytes = 1024 * 1024;

bool try_later(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

short LineSocket::events() const {
  return static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT);
}

bool LineSocket::receive(std::vector<std::string>& lines) {
  std::array<char, 16 * 1024> buffer;
  const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && try_later(errno)) return true;
  if (got <= 0) {
    reason_ = got == 0 ? "connection closed" : errno_text(errno);
    return false;
  }
  in_.append(buffer.data(), static_cast<size_t>(got));
  size_t start = 0;
  for (size_t end = in_.find('\n'); end != std::string::npos; end = in_.find('\n', start)) {
    lines.push_back(in_.substr(start, end - start));
    start = end + 1;
  }
  in_.erase(0, start);
  if (in_.size() <= kMaxLineBytes) return true;
  reason_ = "a line that is too long";
  return false;
}

void LineSocket::send(const std::string& line) {
  out_ += line;
  out_ += '\n';
}

bool LineSocket::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent < 0 && try_later(errno)) break;
    if (sent < 0) {
      reason_ = errno_text(errno);
      return false;
    }
    out_.erase(0, static_cast<size_t>(sent));
  }
  if (out_.size() <= kMaxUnsentBytes) return true;
  reason_ = "it does not read";
  return false;
}

void LineSocket::end_sending() {
  ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace accelerate::detail
