#include "accelerate/tracking/trackers/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <stdexcept>

#include "accelerate/core/error.h"
#include "accelerate/core/file_size_limit.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// How much the thread is handed before the interval is over.
constexpr size_t kWriteAtBytes = size_t{1} << 20;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(concat(what, ": ", errno_text(errno)));
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

std::string read_all(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) fail("open");
  std::string out;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read");
    if (got == 0) return out;
    out.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace

// Either bytes to append or, when `transform` is set, a change of the whole file.
struct Operation {
  std::string bytes = {};
  uint64_t records = 0;
  std::function<std::string(std::string)> transform = {};
};

struct RecordFile::State {
  std::string path;
  RecordFileOptions options;
  UniqueFd fd;       // the thread's
  int64_t size = 0;  // the thread's: bytes of complete records in the file

  std::mutex mutex;
  std::condition_variable work;  // for the thread
  std::condition_variable done;  // for those who wait for it
  std::deque<Operation> waiting;
  size_t waiting_bytes = 0;
  uint64_t waiting_records = 0;
  uint64_t dropped = 0;
  uint64_t appended = 0;
  uint64_t rounds = 0;  // times that the thread has tried all that was waiting
  bool write_now = false;
  bool writing = false;
  bool stop = false;
  bool ended = false;
  bool told = false;
  std::string problem;  // of the last attempt, empty when it went well

  void run();
  void write_waiting(std::unique_lock<std::mutex>& lock);
  void perform(const Operation& operation);
  void append_bytes(std::string_view bytes);
  void replace(const std::string& content);
};

void RecordFile::State::append_bytes(std::string_view bytes) {
  const FileSizeLimitAsError limit;
  try {
    write_all(fd.get(), bytes);
    size += static_cast<int64_t>(bytes.size());
  } catch (const std::exception&) {
    if (::ftruncate(fd.get(), size) == 0) ::lseek(fd.get(), size, SEEK_SET);
    throw;
  }
}

void RecordFile::State::replace(const std::string& content) {
  const FileSizeLimitAsError limit;
  const std::string temporary = path + ".new";
  UniqueFd next(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!next) fail("open");
  try {
    write_all(next.get(), content);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("rename");
  } catch (const std::exception&) {
    ::unlink(temporary.c_str());
    throw;
  }
  fd = std::move(next);
  size = static_cast<int64_t>(content.size());
}

void RecordFile::State::perform(const Operation& operation) {
  if (operation.transform) {
    replace(operation.transform(read_all(path)));
  } else {
    append_bytes(operation.bytes);
  }
}

// Called with the lock, which is given up around every write.
void RecordFile::State::write_waiting(std::unique_lock<std::mutex>& lock) {
  write_now = false;
  problem.clear();
  while (!waiting.empty()) {
    Operation operation = std::move(waiting.front());
    waiting.pop_front();
    std::string failure;
    writing = true;
    lock.unlock();
    try {
      perform(operation);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    writing = false;
    if (failure.empty()) {
      waiting_bytes -= operation.bytes.size();
      waiting_records -= operation.records;
      continue;
    }
    waiting.push_front(std::move(operation));
    problem = failure;
    if (!told && options.logger) {
      told = true;
      options.logger->warning(concat(path, " can't be written now (", failure, "); trying again, up to ",
                                     format_bytes(options.max_pending_bytes), " are kept"),
                              LogRanks::kAll);
    }
    break;
  }
  ++rounds;
  done.notify_all();
}

void RecordFile::State::run() {
  std::unique_lock lock(mutex);
  while (!stop) {
    work.wait_for(lock, options.flush_interval, [this] { return stop || write_now; });
    write_waiting(lock);
  }
  if (!waiting.empty()) write_waiting(lock);  // once more, after a failure at the end
  lock.unlock();
  if (fd) ::fsync(fd.get());
  lock.lock();
  ended = true;
  done.notify_all();
}

RecordFile::RecordFile(std::string path, RecordFileOptions options) : state_(std::make_shared<State>()) {
  state_->path = std::move(path);
  state_->options = std::move(options);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(state_->path).parent_path(), ignored);
  state_->fd.reset(::open(state_->path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!state_->fd) {
    throw ConfigError({.what = concat("can't create ", state_->path, ": ", errno_text(errno)),
                       .hint = "Set ProjectConfiguration's logging_dir to a folder that can be written."});
  }
  thread_ = std::thread([state = state_] { state->run(); });
}

RecordFile::~RecordFile() {
  finish_writing();
}

const std::string& RecordFile::path() const {
  return state_->path;
}

void RecordFile::append(std::string_view record) {
  const std::lock_guard lock(state_->mutex);
  ++state_->appended;
  if (state_->stop || state_->waiting_bytes + record.size() > state_->options.max_pending_bytes) {
    ++state_->dropped;
    return;
  }
  if (state_->waiting.empty() || state_->waiting.back().transform) state_->waiting.emplace_back();
  Operation& last = state_->waiting.back();
  last.bytes += record;
  ++last.records;
  ++state_->waiting_records;
  state_->waiting_bytes += record.size();
  // After a failure the interval is kept, whatever has piled up.
  if (state_->waiting_bytes >= kWriteAtBytes && state_->problem.empty() && !state_->write_now) {
    state_->write_now = true;
    state_->work.notify_one();
  }
}

void RecordFile::rewrite(std::function<std::string(std::string)> transform) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stop) return;
  state_->waiting.push_back({.transform = std::move(transform)});
}

void RecordFile::flush() {
  std::unique_lock lock(state_->mutex);
  if (state_->stop) return;
  // The round that may be running has not seen what came last.
  const uint64_t goal = state_->rounds + 2;
  const auto finished = [&] {
    return (state_->waiting.empty() && !state_->writing) || state_->rounds >= goal;
  };
  const auto end = std::chrono::steady_clock::now() + state_->options.close_timeout;
  while (!finished() && std::chrono::steady_clock::now() < end) {
    state_->write_now = true;
    state_->work.notify_one();
    state_->done.wait_until(lock, end);
  }
}

void RecordFile::finish_writing() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->write_now = true;
  state_->work.notify_one();
  const bool ended =
      state_->done.wait_for(lock, state_->options.close_timeout, [this] { return state_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void RecordFile::close() {
  if (!thread_.joinable()) return;
  finish_writing();
  const std::lock_guard lock(state_->mutex);
  const uint64_t lost = state_->dropped + state_->waiting_records;
  if (lost == 0) return;
  const std::string reason = !state_->ended             ? "the disk did not answer in time"
                             : !state_->problem.empty() ? state_->problem
                                                        : "more was logged than could be written";
  throw Error(
      {.what = concat(state_->path, ": ", lost, " of ", state_->appended, " records are lost (", reason, ")"),
       .hint = "Look at the free space and the quota of that folder."});
}

}  // namespace accelerate
