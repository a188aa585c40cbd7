#include "accelerate/launch/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kLogStart = "rank_";
constexpr std::string_view kLogEnd = ".log";
constexpr auto kSilence = std::chrono::milliseconds(200);
constexpr size_t kMaxPartialBytes = 64 * 1024;  // a longer line is printed in pieces
constexpr size_t kTailLines = 8;
constexpr size_t kMaxTailLineBytes = 500;
constexpr int64_t kStillInSight = 6;                 // lines
constexpr int kAround = Destination::kLauncher + 1;  // the writer of what is relayed
// A reader that takes nothing for so long while the job is being stopped loses output.
constexpr auto kStalled = std::chrono::milliseconds(1000);

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

}  // namespace

Console::Console(const OutputOptions& options, int num_processes, int world_size, bool captures)
    : options_(options),
      captures_(captures || world_size > 1 || !options.log_directory.empty()),
      world_size_(world_size),
      several_(world_size > 1),
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
  // Only an exception leaves something; nobody looks at signals any more.
  begin_stop();
  drain(nullptr);
}

std::vector<Destination*> Console::destinations() {
  std::vector<Destination*> out = {&stdout_};
  if (stderr_) out.push_back(stderr_.get());
  return out;
}

void Console::add_poll_items(std::vector<pollfd>& items) const {
  items.push_back(stdout_.poll_item());
  if (stderr_) items.push_back(stderr_->poll_item());
}

void Console::begin_stop() {
  if (!stopping_since_) stopping_since_ = Clock::now();
}

void Console::look_after(Destination& destination, Clock::time_point now) {
  destination.flush();
  if (!stopping_since_ || !destination.waits()) return;
  if (now >= std::max(*stopping_since_, destination.last_progress()) + kStalled) destination.drop();
}

void Console::run_output(Clock::time_point now) {
  flush_silent(now);
  for (Destination* destination : destinations()) look_after(*destination, now);
  if (stdout_.error() != EPIPE || !stderr_ || std::exchange(reader_gone_told_, true)) return;
  inform("the reader of standard output is gone; the job goes on without");
}

int Console::poll_timeout_ms() const {
  const auto due = next_due();
  if (!due) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*due - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

std::optional<int> Console::drain(SignalPipe* signals) {
  std::optional<int> out;
  // One rank without prefix passes through unchanged, even a missing end of line.
  const bool as_it_is = !captures_ || (ranks_.size() == 1 && !several_);
  if (!as_it_is) {
    for (Destination* destination : destinations()) destination->close_line();
  }
  for (;;) {
    run_output(Clock::now());
    std::vector<pollfd> items = {{signals != nullptr ? signals->fd() : -1, POLLIN, 0}};
    bool waits = false;
    for (const Destination* destination : destinations()) {
      if (!destination->waits() || destination->drops()) continue;
      items.push_back(destination->poll_item());
      waits = true;
    }
    if (!waits) return out;
    ::poll(items.data(), items.size(), poll_timeout_ms());
    while (signals != nullptr) {
      const auto number = signals->next();
      if (!number) break;
      out = out.value_or(*number);
      begin_stop();
    }
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
  remove_old_logs();
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const std::string path = log_path(static_cast<int>(rank));
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
      throw LaunchError(
          {.what = concat("can't write the log file ", path, ": ", errno_text(errno)),
           .hint = errno == EMFILE ? descriptor_hint(EMFILE) : "Choose another directory with --log_dir."});
    }
    ranks_[rank].log = nullptr;
    ranks_[rank].log_fd.reset(fd);
    ranks_[rank].log = std::make_unique<Destination>(fd);
  }
}

// Those of an earlier run with more ranks would look like part of this one. Ranks of other machines are below
// the world size, so their files are safe.
void Console::remove_old_logs() const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options_.log_directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kLogStart) || !name.ends_with(kLogEnd)) continue;
    const auto rank =
        parse_int(name.substr(kLogStart.size(), name.size() - kLogStart.size() - kLogEnd.size()));
    std::error_code ignored;
    if (rank && *rank >= world_size_) std::filesystem::remove(entry.path(), ignored);
  }
}

std::string Console::log_path(int rank) const {
  if (options_.log_directory.empty()) return {};
  return (std::filesystem::path(options_.log_directory) /
          concat(kLogStart, first_rank_.value_or(0) + rank, kLogEnd))
      .string();
}

void Console::write_log(Rank& rank) {
  if (!rank.log) return;
  rank.log->flush();
  if (rank.log->error() == 0 || std::exchange(log_failed_, true)) return;
  say(concat("warning: a log file can't be written any more: ", errno_text(rank.log->error())));
}

void Console::feed(int rank_number, RankStream which, std::string_view bytes) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Stream& stream = rank.streams[static_cast<int>(which)];
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
  write_log(rank);
  destination(which).flush();
}

void Console::end_of_stream(int rank_number, RankStream which) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Stream& stream = rank.streams[static_cast<int>(which)];
  if (!stream.partial.empty()) print_piece(rank_number, which, stream.partial, 0);
  stream.partial.clear();
  if (!stream.line.empty()) remember(rank, which, {}, '\n');
  write_log(rank);
  destination(which).flush();
}

void Console::flush_silent(Clock::time_point now) {
  for (size_t number = 0; number < ranks_.size(); ++number) {
    for (const RankStream which : {RankStream::kStdout, RankStream::kStderr}) {
      Stream& stream = ranks_[number].streams[static_cast<int>(which)];
      if (stream.partial.empty() || now < stream.changed + kSilence) continue;
      print_piece(static_cast<int>(number), which, stream.partial, 0);
      stream.partial.clear();
      write_log(ranks_[number]);
    }
  }
}

std::optional<Console::Clock::time_point> Console::next_due() const {
  std::optional<Clock::time_point> next;
  for (const Destination* destination : {&stdout_, static_cast<const Destination*>(stderr_.get())}) {
    if (!stopping_since_ || destination == nullptr || !destination->waits() || destination->drops()) continue;
    const auto due = std::max(*stopping_since_, destination->last_progress()) + kStalled;
    if (!next || due < *next) next = due;
  }
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
  const int writer = 2 * rank_number + static_cast<int>(which);
  if (prints(which)) destination(which).add(writer, rank.prefix, text, end);
  if (rank.log && (options_.logged_streams & bit(which)) != 0) rank.log->add(writer, "", text, end);
  remember(rank, which, text, end);
}

void Console::remember(Rank& rank, RankStream which, std::string_view text, char end) {
  if (which != RankStream::kStderr) return;
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
  for (const std::string& line : split(text, '\n'))
    out.add(Destination::kLauncher, "", concat("accel: ", line), '\n');
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
