#include "accelerate/tracking/trackers/progress_bar.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUsualColumns = 80;
constexpr std::chrono::minutes kLongestPause{10};
// A rate that follows changes, yet does not jump: of every new measurement this share counts (tqdm's value).
constexpr double kSmoothing = 0.3;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // a closed standard error must not end the training
    text.remove_prefix(static_cast<size_t>(written));
  }
}

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// Characters of UTF-8, taken as one column each.
int64_t columns_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); });
}

std::string first_columns(const std::string& text, int64_t columns) {
  size_t at = 0;
  for (int64_t taken = 0; at < text.size(); ++at) {
    if (is_continuation(text[at])) continue;
    if (taken++ == columns) break;
  }
  return text.substr(0, at);
}

std::string without_control_characters(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string rate_text(double per_second, const std::string& unit) {
  char buffer[32];
  if (per_second <= 0) return concat("? ", unit, "/s");
  if (per_second < 1) {
    std::snprintf(buffer, sizeof buffer, "%.2f s/", 1 / per_second);
    return buffer + (unit.size() > 1 && unit.back() == 's' ? unit.substr(0, unit.size() - 1) : unit);
  }
  std::snprintf(buffer, sizeof buffer, per_second < 1000 ? "%.1f " : "%.0f ", per_second);
  return buffer + unit + "/s";
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::clamp(seconds, 0.0, 3.0e9));
  char buffer[40];
  if (whole >= 3600) {
    std::snprintf(buffer, sizeof buffer, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    std::snprintf(buffer, sizeof buffer, "%02lld:%02lld", whole / 60, whole % 60);
  }
  return buffer;
}

// All but `hide` and `show` is called without the logger's lock, and draws with it.
class ProgressBar::Painter final : public StatusLine {
 public:
  Painter(std::optional<int64_t> total, std::string description, ProgressBarOptions options)
      : total_(total),
        description_(without_control_characters(std::move(description))),
        options_(std::move(options)),
        environment_(options_.environment ? *options_.environment : EnvVars::from_process()) {
    if (!options_.logger) options_.logger = std::make_shared<Logger>();
    shown_ = options_.shown && options_.logger->level() <= LogLevel::kInfo;
    terminal_ = options_.terminal.value_or(looks_like_terminal());
    pause_ = options_.line_interval;
    started_ = drawn_ = Clock::now();
    if (!shown_ || !terminal_) return;
    options_.logger->add_status_line(*this);
  }

  ~Painter() override = default;

  void advance(int64_t count) {
    const int64_t done = done_.fetch_add(count) + count;
    if (!shown_ || finished_.load()) return;
    const auto now = Clock::now().time_since_epoch().count();
    if (!is_due(done, now)) return;
    draw();
  }

  void set_note(std::string note) {
    options_.logger->between_lines([&] { note_ = without_control_characters(std::move(note)); });
  }

  void finish() {
    if (finished_.exchange(true) || !shown_) return;
    if (terminal_) {
      options_.logger->remove_status_line(*this, [this] {
        paint();
        write_all(options_.fd, "\n");
      });
    } else if (done_ != last_line_done_) {
      options_.logger->between_lines([this] { write_line(); });
    }
  }

  int64_t done() const { return done_; }

  void hide() override { write_all(options_.fd, "\r\033[K"); }
  void show() override { paint(); }

 private:
  bool looks_like_terminal() const {
    if (::isatty(options_.fd) != 0) return environment_.get("TERM").value_or("dumb") != "dumb";
    return environment_.get(variables::kTerminal) == "1";
  }

  // A cheap look, without the lock.
  bool is_due(int64_t done, Clock::rep now) const {
    const bool last = total_ && done >= *total_;
    const Clock::duration since(now - last_drawn_.load());
    if (terminal_) return last || since >= options_.redraw_interval;
    const int64_t tenth = total_ && *total_ > 0 ? done * 10 / *total_ : 0;
    return tenth > tenth_.load() || since >= pause_.load();
  }

  void draw() {
    if (terminal_) {
      options_.logger->draw_status_line(*this);
    } else {
      options_.logger->between_lines([this] {
        if (!finished_) write_line();
      });
    }
  }

  void paint() {
    measure();
    const int width = columns() - 1;  // the last column makes some terminals wrap
    write_all(options_.fd, concat("\r", line(width), "\033[K"));
  }

  // "epoch 1: 40% (400/1000) [00:12<00:18, 33.3 steps/s, loss 0.31]"
  void write_line() {
    const int64_t done = done_;
    // Another thread may have written it meanwhile.
    if (done == last_line_done_) return;
    measure();
    const int64_t tenth = total_ && *total_ > 0 ? done * 10 / *total_ : 0;
    if (tenth == tenth_.load()) pause_ = std::min<Clock::duration>(pause_.load() * 2, kLongestPause);
    tenth_ = tenth;
    last_line_done_ = done;
    std::string out = description_.empty() ? "" : description_ + ": ";
    out += total_ ? concat(percent(done), "% (", done, "/", *total_, ")") : concat(done);
    write_all(options_.fd, concat(out, " ", statistics(done), "\n"));
  }

  std::string line(int width) const {
    const int64_t done = done_;
    std::string head = description_.empty() ? "" : description_ + ": ";
    if (!total_) return first_columns(concat(head, done, " ", statistics(done)), width);
    char number[8];
    std::snprintf(number, sizeof number, "%3d%%", percent(done));
    head += number;
    const std::string tail = concat(" ", done, "/", *total_, " ", statistics(done));
    const int64_t room = width - columns_of(head) - columns_of(tail) - 3;
    if (room < 5) return first_columns(head + tail, width);
    const int64_t most = std::min<int64_t>(room, 40);
    const auto filled = static_cast<size_t>(
        *total_ > 0 ? std::clamp<int64_t>(most * std::min(done, *total_) / *total_, 0, most) : most);
    return concat(head, " |", std::string(filled, '#'), std::string(static_cast<size_t>(most) - filled, '.'),
                  "|", tail);
  }

  int percent(int64_t done) const {
    if (*total_ <= 0) return 100;
    return static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(*total_));
  }

  // "[00:12<00:16, 35.0 steps/s, loss 0.31]"
  std::string statistics(int64_t done) const {
    const double elapsed = std::chrono::duration<double>(Clock::now() - started_).count();
    std::string out = concat("[", clock_text(elapsed));
    if (total_ && done < *total_) {
      out += concat("<", rate_ > 0 ? clock_text(static_cast<double>(*total_ - done) / rate_) : "?");
    }
    // At the end the mean says more than the last second.
    const double rate =
        total_ && done >= *total_ && elapsed > 0 ? static_cast<double>(done) / elapsed : rate_;
    out += concat(", ", rate_text(rate, options_.unit));
    return concat(out, note_.empty() ? "" : ", ", note_, "]");
  }

  void measure() {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - drawn_).count();
    const int64_t done = done_;
    if (seconds > 1e-3 && done > measured_done_) {
      const double latest = static_cast<double>(done - measured_done_) / seconds;
      rate_ = rate_ > 0 ? kSmoothing * latest + (1 - kSmoothing) * rate_ : latest;
      drawn_ = now;
      measured_done_ = done;
    }
    last_drawn_ = now.time_since_epoch().count();
  }

  // Asked each time, since windows change their size.
  int columns() const {
    winsize size{};
    if (::ioctl(options_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    if (const auto text = environment_.get("COLUMNS")) {
      if (const auto number = parse_int(*text); number && *number > 0 && *number < 10'000) {
        return static_cast<int>(*number);
      }
    }
    return kUsualColumns;
  }

  const std::optional<int64_t> total_;
  const std::string description_;
  ProgressBarOptions options_;
  EnvVars environment_;
  bool shown_ = false;
  bool terminal_ = false;

  Clock::time_point started_;

  std::atomic<int64_t> done_{0};
  std::atomic<bool> finished_{false};
  std::atomic<int64_t> tenth_{0};
  std::atomic<Clock::rep> last_drawn_{Clock::now().time_since_epoch().count()};
  std::atomic<Clock::duration> pause_{};

  // With the logger's lock.
  Clock::time_point drawn_;
  int64_t measured_done_ = 0;
  int64_t last_line_done_ = 0;
  double rate_ = 0;
  std::string note_;
};

ProgressBar::ProgressBar(std::optional<int64_t> total, std::string description, ProgressBarOptions options)
    : painter_(std::make_unique<Painter>(total, std::move(description), std::move(options))) {}

ProgressBar::~ProgressBar() {
  painter_->finish();
}

void ProgressBar::advance(int64_t count) {
  painter_->advance(count);
}

void ProgressBar::set_note(std::string note) {
  painter_->set_note(std::move(note));
}

void ProgressBar::finish() {
  painter_->finish();
}

int64_t ProgressBar::done() const {
  return painter_->done();
}

}  // namespace accelerate
