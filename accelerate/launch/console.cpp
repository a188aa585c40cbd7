#include "accelerate/launch/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr auto kSilence = std::chrono::milliseconds(200);
constexpr size_t kMaxPartialBytes = 64 * 1024;  // a longer line is printed in pieces
constexpr size_t kTailLines = 8;
constexpr size_t kMaxTailLineBytes = 500;
constexpr int64_t kStillInSight = 6;    // lines
constexpr int kLauncher = 1 << 30;      // the writer of our own lines
constexpr int kAround = kLauncher + 1;  // the writer of what is relayed

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  if (::fstat(a, &first) != 0 || ::fstat(b, &second) != 0) return false;
  return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

// The bit of a stream in a mask.
int bit(RankStream stream) {
  return stream == RankStream::kStdout ? kStdoutStream : kStderrStream;
}

// True if both streams go the same ways.
bool treated_alike(const OutputOptions& options) {
  const auto alike = [](int mask) { return mask == 0 || mask == (kStdoutStream | kStderrStream); };
  return options.log_directory.empty() || (alike(options.logged_streams) && alike(options.shown_streams));
}

// False when the rest can't be written.
bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      // Somebody made our output non-blocking; wait for room.
      ::usleep(1000);
    } else if (written < 0 && errno == EINTR) {
      // A signal while the reader is stalled: give this text up, so that stopping the job does not wait for
      // it.
      return true;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

void Destination::add(int writer, std::string_view prefix, std::string_view text, char end) {
  const bool own_line_open = open_writer_ == writer;
  if (text.empty() && end == '\r' && !own_line_open) return;  // nothing to go back over
  if (open_writer_ != kNobody && !own_line_open) close_line();
  const bool starts_line = open_writer_ == kNobody || at_line_start_;
  const bool only_ends_line = text.empty() && own_line_open;
  if (starts_line && !only_ends_line) pending_ += prefix;
  pending_ += text;
  if (end != 0) pending_ += end;
  at_line_start_ = end == '\r';
  open_writer_ = end == '\n' ? kNobody : writer;
  if (end == '\n') ++lines_;
}

void Destination::close_line() {
  if (open_writer_ == kNobody) return;
  pending_ += '\n';
  ++lines_;
  open_writer_ = kNobody;
  at_line_start_ = false;
}

void Destination::flush() {
  if (!broken_ && !write_all(fd_, pending_)) broken_ = true;
  pending_.clear();
}

Console::Console(const OutputOptions& options, int num_processes, int world_size, bool captures)
    : options_(options),
      captures_(captures || num_processes > 1 || !options.log_directory.empty()),
      several_(world_size > 1),
      merges_(treated_alike(options) &&
              (!prints(RankStream::kStdout) || same_file(STDOUT_FILENO, STDERR_FILENO))),
      stdout_(STDOUT_FILENO),
      ranks_(static_cast<size_t>(num_processes)) {
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) stderr_ = std::make_unique<Destination>(STDERR_FILENO);
}

bool Console::prints(RankStream stream) const {
  return options_.log_directory.empty() || (options_.shown_streams & bit(stream)) != 0;
}

void Console::renumber(int first_rank) {
  if (first_rank_ == first_rank) return;
  first_rank_ = first_rank;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (options_.prefix && several_)
      ranks_[i].prefix = concat("[rank ", first_rank + static_cast<int>(i), "] ");
  }
  if (!options_.log_directory.empty()) open_logs();
}

Console::~Console() {
  if (!captures_) return;
  // One rank without prefix passes through unchanged, even a missing end of line.
  if (ranks_.size() == 1 && !several_) return;
  for (Destination* destination : {&stdout_, stderr_.get()}) {
    if (destination == nullptr) continue;
    destination->close_line();
    destination->flush();
  }
}

void Console::open_logs() {
  std::error_code error;
  std::filesystem::create_directories(options_.log_directory, error);
  if (error) {
    throw LaunchError(
        {.what = concat("can't make the log directory ", options_.log_directory, ": ", error.message()),
         .hint = "Choose another with --log_dir."});
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::string path = log_path(static_cast<int>(rank));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
      throw LaunchError({.what = concat("can't write the log file ", path, ": ", errno_text(errno)),
                         .hint = "Choose another directory with --log_dir."});
    }
    ranks_[rank].log.reset(fd);
  }
}

std::string Console::log_path(int rank) const {
  if (options_.log_directory.empty()) return {};
  return (std::filesystem::path(options_.log_directory) /
          concat("rank_", first_rank_.value_or(0) + rank, ".log"))
      .string();
}

void Console::write_log(Rank& rank, RankStream stream, std::string_view bytes) {
  if (!rank.log || (options_.logged_streams & bit(stream)) == 0 || write_all(rank.log.get(), bytes)) return;
  const std::string reason = errno_text(errno);
  rank.log.reset();
  if (!std::exchange(log_failed_, true))
    say(concat("warning: a log file can't be written any more: ", reason));
}

void Console::feed(int rank_number, RankStream which, std::string_view bytes) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Stream& stream = rank.streams[static_cast<int>(which)];
  write_log(rank, which, bytes);
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view text = bytes.substr(0, end);
    stream.partial += text;
    if (end == std::string_view::npos) break;
    print_piece(rank_number, which, stream.partial, bytes[end]);
    stream.partial.clear();
    bytes.remove_prefix(end + 1);
  }
  if (stream.partial.size() > kMaxPartialBytes) {
    print_piece(rank_number, which, stream.partial, 0);
    stream.partial.clear();
  }
  stream.changed = Clock::now();
  destination(which).flush();
}

void Console::end_of_stream(int rank_number, RankStream which) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Stream& stream = rank.streams[static_cast<int>(which)];
  if (!stream.partial.empty()) print_piece(rank_number, which, stream.partial, 0);
  stream.partial.clear();
  if (!stream.line.empty()) remember(rank, which, {}, '\n');
  destination(which).flush();
}

void Console::flush_silent(Clock::time_point now) {
  for (size_t number = 0; number < ranks_.size(); ++number) {
    for (const RankStream which : {RankStream::kStdout, RankStream::kStderr}) {
      Stream& stream = ranks_[number].streams[static_cast<int>(which)];
      if (stream.partial.empty() || now < stream.changed + kSilence) continue;
      print_piece(static_cast<int>(number), which, stream.partial, 0);
      stream.partial.clear();
      destination(which).flush();
    }
  }
}

std::optional<Console::Clock::time_point> Console::next_flush() const {
  std::optional<Clock::time_point> next;
  for (const Rank& rank : ranks_) {
    for (const Stream& stream : rank.streams) {
      if (stream.partial.empty()) continue;
      const auto due = stream.changed + kSilence;
      if (!next || due < *next) next = due;
    }
  }
  return next;
}

void Console::print_piece(int rank_number, RankStream which, std::string_view text, char end) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  if (prints(which))
    destination(which).add(2 * rank_number + static_cast<int>(which), rank.prefix, text, end);
  remember(rank, which, text, end);
}

void Console::remember(Rank& rank, RankStream which, std::string_view text, char end) {
  if (which != (merges_ ? RankStream::kStdout : RankStream::kStderr)) return;
  std::string& line = rank.streams[static_cast<int>(which)].line;
  if (line.size() < kMaxTailLineBytes) line += text.substr(0, kMaxTailLineBytes - line.size());
  if (end == 0) return;
  // A progress bar's states overwrite one another; only the last one counts, and only if it ends as a line.
  // Stack frames below torch's errors would push the error itself out.
  const bool frame = line.starts_with("frame #") || line.starts_with("  what():  frame #");
  if (end == '\n' && !frame && !trim(line).empty()) {
    rank.tail.push_back({line, prints(which) ? stderr_destination().lines() : -kStillInSight});
    if (rank.tail.size() > kTailLines) rank.tail.pop_front();
  }
  line.clear();
}

void Console::relay(RankStream which, std::string_view text) {
  Destination& out = destination(which);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    out.add(kAround, "", text.substr(0, end), end == std::string_view::npos ? '\0' : '\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  out.flush();
}

void Console::say(std::string_view text) {
  Destination& out = destination(RankStream::kStderr);
  for (const std::string& line : split(text, '\n')) out.add(kLauncher, "", concat("accel: ", line), '\n');
  out.flush();
}

void Console::inform(std::string_view text) {
  if (!options_.quiet) say(text);
}

std::vector<std::string> Console::unseen_errors(int rank_number) const {
  const Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  if (rank.tail.empty()) return {};
  const int64_t since = stderr_destination().lines() - rank.tail.back().printed_at;
  if (prints(RankStream::kStderr) && since < kStillInSight) return {};
  std::vector<std::string> out;
  for (const Line& line : rank.tail) out.push_back(line.text);
  return out;
}

}  // namespace accelerate::detail
