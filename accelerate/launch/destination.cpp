#include "accelerate/launch/destination.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr size_t kEnoughBytes = 256 * 1024;

// O_NONBLOCK belongs to what dup() shares, with programs that don't expect it. A pipe or terminal that is
// opened anew has flags of its own. Empty where that can't be done.
UniqueFd reopen(int fd) {
  return UniqueFd(::open(concat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Destination::Destination(int fd) : fd_(fd), last_progress_(Clock::now()) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return;
  is_file_ = S_ISREG(info.st_mode);
  is_socket_ = S_ISSOCK(info.st_mode);
  if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) own_ = reopen(fd);
}

void Destination::add(int writer, std::string_view prefix, std::string_view text, char end) {
  if (error_ != 0) {
    lines_ += end == '\n' ? 1 : 0;
    return;
  }
  if (drops_ && writer != kLauncher) {
    dropped_bytes_ += static_cast<int64_t>(text.size()) + (end != 0 ? 1 : 0);
    return;
  }
  const bool own_line_open = open_writer_ == writer;
  if (text.empty() && end == '\r' && !own_line_open) return;  // nothing to go back over
  if (open_writer_ != kNobody && !own_line_open) close_line();
  const bool starts_line = open_writer_ == kNobody || at_line_start_;
  const bool only_ends_line = text.empty() && own_line_open;
  if (queue_.empty()) last_progress_ = Clock::now();
  if (starts_line && !only_ends_line) queue_ += prefix;
  queue_ += text;
  if (end != 0) queue_ += end;
  at_line_start_ = end == '\r';
  open_writer_ = end == '\n' ? kNobody : writer;
  if (end == '\n') ++lines_;
}

void Destination::close_line() {
  if (open_writer_ == kNobody) return;
  queue_ += '\n';
  ++lines_;
  open_writer_ = kNobody;
  at_line_start_ = false;
}

// The beginning of `text` that a pipe takes in one piece, in whole lines where possible: others may write
// there too.
std::string_view Destination::first_piece(std::string_view text) const {
  constexpr size_t kPieceBytes = PIPE_BUF;
  if (is_file_ || text.size() <= kPieceBytes) return text;
  const size_t end = text.rfind('\n', kPieceBytes - 1);
  return text.substr(0, end == std::string_view::npos ? kPieceBytes : end + 1);
}

ssize_t Destination::write_some(std::string_view text) const {
  if (is_socket_) return ::send(fd(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  pollfd item{fd(), POLLOUT, 0};
  // What could not be opened anew may block, but not for so little while there is room.
  if (!own_ && !is_file_ && ::poll(&item, 1, 0) <= 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd(), text.data(), text.size());
}

void Destination::flush() {
  std::string_view left = queue_;
  while (error_ == 0 && !left.empty()) {
    const ssize_t written = write_some(first_piece(left));
    if (written > 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (written == 0 || errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  const size_t done = queue_.size() - left.size();
  if (done > 0) cut_ = queue_[done - 1] != '\n';
  queue_.erase(0, error_ != 0 ? queue_.size() : done);
  if (done > 0 || queue_.empty()) last_progress_ = Clock::now();
  if (done > 0 && drops_) {
    drops_ = false;
    const int64_t lost = std::exchange(dropped_bytes_, 0);
    add(kLauncher, "", concat("accel: ", lost, " bytes of output were dropped, since nobody read them"),
        '\n');
  }
}

bool Destination::has_room() const {
  return error_ != 0 || drops_ || queue_.size() < kEnoughBytes;
}

void Destination::drop() {
  if (drops_) return;
  drops_ = true;
  close_line();
  const size_t kept = cut_ ? queue_.find('\n') + 1 : 0;
  dropped_bytes_ += static_cast<int64_t>(queue_.size() - kept);
  queue_.erase(kept);
}

}  // namespace accelerate::detail
