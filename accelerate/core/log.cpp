#include "accelerate/core/log.h"

#include <unistd.h>

#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void write_line_to_stderr(std::string_view line) {
  std::string text(line);
  text += '\n';
  const char* data = text.data();
  size_t left = text.size();
  while (left > 0) {
    const ssize_t written = ::write(STDERR_FILENO, data, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed standard error must not end the training
    data += written;
    left -= static_cast<size_t>(written);
  }
}

std::string_view level_prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    case LogLevel::kDebug:
      return "debug: ";
    default:
      return "";
  }
}

}  // namespace

std::optional<LogLevel> parse_log_level(std::string_view text) {
  const std::string word = to_lower(trim(text));
  if (word == "debug" || word == "10") return LogLevel::kDebug;
  if (word == "info" || word == "20") return LogLevel::kInfo;
  if (word == "warning" || word == "warn" || word == "30") return LogLevel::kWarning;
  if (word == "error" || word == "40" || word == "critical" || word == "50") return LogLevel::kError;
  if (word == "off") return LogLevel::kOff;
  return std::nullopt;
}

Logger::Logger(int rank, LogLevel level, Sink sink)
    : rank_(rank), level_(level), sink_(sink ? std::move(sink) : Sink(write_line_to_stderr)) {}

void Logger::warning_once(std::string_view message, LogRanks ranks) {
  {
    const std::lock_guard lock(mutex_);
    if (!seen_.emplace(message).second) return;
  }
  warning(message, ranks);
}

void Logger::log(LogLevel level, std::string_view message, LogRanks ranks) {
  if (level < level_ || level == LogLevel::kOff) return;
  if (ranks == LogRanks::kMain && rank_ != 0) return;
  const std::string line = ranks == LogRanks::kAll
                               ? concat("[rank ", rank_, "] ", level_prefix(level), message)
                               : concat(level_prefix(level), message);
  const std::lock_guard lock(mutex_);
  if (!status_lines_.empty()) status_lines_.back()->hide();
  sink_(line);
  if (!status_lines_.empty()) status_lines_.back()->show();
}

void Logger::add_status_line(StatusLine& line) {
  const std::lock_guard lock(mutex_);
  if (!status_lines_.empty()) status_lines_.back()->hide();
  status_lines_.push_back(&line);
  line.show();
}

void Logger::draw_status_line(StatusLine& line) {
  const std::lock_guard lock(mutex_);
  if (!status_lines_.empty() && status_lines_.back() == &line) line.show();
}

void Logger::remove_status_line(StatusLine& line, const std::function<void()>& last_words) {
  const std::lock_guard lock(mutex_);
  if (!status_lines_.empty()) status_lines_.back()->hide();
  std::erase(status_lines_, &line);
  last_words();
  if (!status_lines_.empty()) status_lines_.back()->show();
}

void Logger::between_lines(const std::function<void()>& body) {
  const std::lock_guard lock(mutex_);
  body();
}

}  // namespace accelerate
