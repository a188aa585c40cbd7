#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace accelerate {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// "debug", "info", "warning" (or "warn"), "error", "off", any case, or Python's numbers 10 20 30 40; nothing
/// for any other text.
std::optional<LogLevel> parse_log_level(std::string_view text);

/// Who prints a line.
enum class LogRanks {
  kMain,  ///< rank 0 only (the default)
  kAll,   ///< every rank, each line marked "[rank R]"
};

/// What stands below the last line of a terminal and is redrawn in place, such as a progress bar. A Logger
/// calls it with its own lock held, around every line that it writes; neither may log.
class StatusLine {
 public:
  virtual ~StatusLine() = default;
  virtual void hide() = 0;
  virtual void show() = 0;
};

/// Writes whole lines, so that those of several ranks never mix within a line. Thread-safe. Each Accelerator
/// has its own; nothing is process-wide.
class Logger {
 public:
  using Sink = std::function<void(std::string_view line)>;

  /// `rank` is the global rank of the owner. Without `sink`, lines go to standard error, each in one
  /// write(2). The level defaults to `info`; callers pass what ACCELERATE_LOG_LEVEL says.
  explicit Logger(int rank = 0, LogLevel level = LogLevel::kInfo, Sink sink = {});

  void debug(std::string_view message, LogRanks ranks = LogRanks::kMain) {
    log(LogLevel::kDebug, message, ranks);
  }
  void info(std::string_view message, LogRanks ranks = LogRanks::kMain) {
    log(LogLevel::kInfo, message, ranks);
  }
  void warning(std::string_view message, LogRanks ranks = LogRanks::kMain) {
    log(LogLevel::kWarning, message, ranks);
  }
  void error(std::string_view message, LogRanks ranks = LogRanks::kMain) {
    log(LogLevel::kError, message, ranks);
  }
  /// As warning(), but a message that this logger has printed before is dropped.
  void warning_once(std::string_view message, LogRanks ranks = LogRanks::kMain);

  void log(LogLevel level, std::string_view message, LogRanks ranks);

  /// From now on `line` is shown below all lines, in place of the one that was added before it. It must be
  /// removed before it is destroyed.
  void add_status_line(StatusLine& line);
  /// Shows `line` anew if it is the one that was added last.
  void draw_status_line(StatusLine& line);
  /// Removes it; `last_words`, which may not log, writes what shall stay on the screen of it.
  void remove_status_line(StatusLine& line, const std::function<void()>& last_words);
  /// Runs `body`, which may not log, while no line is being written.
  void between_lines(const std::function<void()>& body);

  LogLevel level() const { return level_; }
  int rank() const { return rank_; }

 private:
  int rank_;
  LogLevel level_;
  Sink sink_;
  std::mutex mutex_;
  std::unordered_set<std::string> seen_;
  std::vector<StatusLine*> status_lines_;
};

}  // namespace accelerate
