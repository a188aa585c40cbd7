// The progress bar on a terminal of its own, and where there is none.
#include "accelerate/tracking/trackers/progress_bar.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>

#include <mutex>
#include <thread>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using accelerate::testing::AccelRun;
using accelerate::testing::bin;
using accelerate::testing::eventually;
using accelerate::testing::lines_of;

namespace {

// A pair of descriptors: what is written at one is read from the other by a thread, since a terminal's buffer
// is small and a full one stops the writer.
class Channel {
 public:
  static Channel terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    int master = -1;
    int slave = -1;
    REQUIRE(::openpty(&master, &slave, nullptr, nullptr, &size) == 0);
    termios mode{};
    ::tcgetattr(slave, &mode);
    mode.c_oflag &= static_cast<tcflag_t>(~OPOST);  // line ends as they are
    ::tcsetattr(slave, TCSANOW, &mode);
    return Channel(slave, master);
  }
  static Channel pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    return Channel(ends[1], ends[0]);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() {
    in_.reset();
    reader_.join();
  }

  int fd() const { return in_.get(); }

  // All that has been written since the last call: up to a mark, which goes the same way.
  std::string text() const {
    REQUIRE(::write(fd(), &kMark, 1) == 1);
    REQUIRE(eventually([this] {
      const std::lock_guard lock(mutex_);
      return read_.ends_with(kMark);
    }));
    const std::lock_guard lock(mutex_);
    read_.pop_back();
    return std::exchange(read_, {});
  }

 private:
  static constexpr char kMark = 1;  // bars write no control characters but their own

  Channel(int in, int out) : in_(in), out_(out), reader_([this] { read_on(); }) {}

  void read_on() {
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::read(out_.get(), buffer, sizeof buffer);
      if (got <= 0) return;  // the other end is closed
      const std::lock_guard lock(mutex_);
      read_.append(buffer, static_cast<size_t>(got));
    }
  }

  UniqueFd in_;
  UniqueFd out_;
  mutable std::mutex mutex_;
  mutable std::string read_;
  std::thread reader_;  // last: it uses all of the above
};

EnvVars terminal_environment() {
  EnvVars out;
  out.set("TERM", "xterm");
  return out;
}

ProgressBarOptions options_for(const Channel& channel, const EnvVars& environment = terminal_environment()) {
  const int fd = channel.fd();
  ProgressBarOptions out{
      .fd = fd, .environment = environment, .redraw_interval = std::chrono::milliseconds(0)};
  out.logger = std::make_shared<Logger>(0, LogLevel::kInfo, [fd](std::string_view line) {
    const std::string whole = std::string(line) + "\n";
    CHECK(::write(fd, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
  });
  return out;
}

// What stands on the screen in the end, line by line.
std::vector<std::string> screen_of(const std::string& text) {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text[i] == '\r') {
      column = 0;
    } else if (text.compare(i, 3, "\033[K") == 0) {
      lines.back().resize(column);
      i += 2;
    } else {
      lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
      lines.back()[column++] = text[i];
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("on a terminal one line is redrawn, no wider than the window") {
  for (const unsigned short columns : {100, 60, 30, 8}) {
    const Channel channel = Channel::terminal(columns);
    {
      ProgressBar bar(200, "epoch 1", options_for(channel));
      for (int i = 0; i < 200; ++i) bar.advance();
    }
    const std::string text = channel.text();
    INFO(columns << ": " << text);
    CHECK(AccelRun::count_in(text, "\n") == 1);
    CHECK(AccelRun::count_in(text, "\r") > 10);
    const auto screen = screen_of(text);
    CHECK(screen[0].size() < columns);
    if (columns >= 60)
      CHECK_THAT(screen[0], ContainsSubstring("epoch 1: 100% |###") && ContainsSubstring("200/200 ["));
    for (const std::string& drawn : split(text, '\r')) CHECK(drawn.size() < columns + 5u);
  }
}

TEST_CASE("the bar shows count, rate, time left and a note") {
  const Channel channel = Channel::terminal(120);
  ProgressBar bar(100, "train", options_for(channel));
  bar.set_note("loss 0.5\nlr 1");
  for (int i = 0; i < 25; ++i) {
    ::usleep(4000);
    bar.advance();
  }
  const std::string text = channel.text();
  const std::string last = screen_of(text)[0];
  INFO(last);
  CHECK_THAT(last, ContainsSubstring("train:  25% |##########") &&
                       ContainsSubstring("| 25/100 [00:00<00:0") &&
                       ContainsSubstring(" steps/s, loss 0.5 lr 1]"));
  CHECK(bar.done() == 25);
}

TEST_CASE("log lines stand above the bar") {
  const Channel channel = Channel::terminal(100);
  const ProgressBarOptions options = options_for(channel);
  {
    ProgressBar bar(10, "work", options);
    for (int i = 0; i < 10; ++i) {
      bar.advance();
      if (i == 4) options.logger->info("half way");
    }
    bar.finish();
    bar.finish();
    bar.advance();
  }
  options.logger->info("after");
  const auto screen = screen_of(channel.text());
  REQUIRE(screen.size() == 4);
  CHECK(screen[0] == "half way");
  CHECK_THAT(screen[1], ContainsSubstring("work: 100%"));
  CHECK(screen[2] == "after");
}

TEST_CASE("threads that advance and log leave whole lines") {
  const Channel channel = Channel::terminal(100);
  const ProgressBarOptions options = options_for(channel);
  {
    ProgressBar bar(400, "work", options);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          bar.advance();
          if (i % 50 == 0) options.logger->info("a line");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const auto screen = screen_of(channel.text());
  REQUIRE(screen.size() == 10);
  for (int i = 0; i < 8; ++i) CHECK(screen[static_cast<size_t>(i)] == "a line");
  CHECK_THAT(screen[8], ContainsSubstring("400/400"));
}

TEST_CASE("without a terminal there are plain lines, one a tenth") {
  const Channel channel = Channel::pipe();
  {
    ProgressBar bar(1000, "epoch 2", options_for(channel));
    for (int i = 0; i < 1000; ++i) bar.advance();
  }
  const std::string text = channel.text();
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('\033') == std::string::npos);
  const auto lines = lines_of(text);
  REQUIRE(lines.size() == 10);
  // The time that is left is "?" where the first hundred took no time that can be measured.
  CHECK_THAT(lines[0], ContainsSubstring("epoch 2: 10% (100/1000) [00:00<"));
  CHECK_THAT(lines[9], ContainsSubstring("epoch 2: 100% (1000/1000) [00:0"));
}

TEST_CASE("without a terminal pauses between lines grow") {
  const Channel channel = Channel::pipe();
  ProgressBarOptions options = options_for(channel);
  options.line_interval = std::chrono::milliseconds(20);
  ProgressBar bar(std::nullopt, "reading", options);
  for (int i = 0; i < 70; ++i) {
    ::usleep(5000);
    bar.advance();
  }
  bar.finish();
  // Pauses of 20, 40, 80, 160 ms: four or five lines in a third of a second, and the last.
  const auto lines = lines_of(channel.text());
  CHECK(lines.size() >= 3);
  CHECK(lines.size() <= 7);
  CHECK_THAT(lines.back(), ContainsSubstring("reading: 70 [00:0"));
}

TEST_CASE("a bar is silent where it should be") {
  const Channel channel = Channel::terminal(100);
  ProgressBarOptions quiet = options_for(channel);
  quiet.logger = std::make_shared<Logger>(0, LogLevel::kWarning);
  ProgressBarOptions other_rank = options_for(channel);
  other_rank.shown = false;
  for (const ProgressBarOptions& options : {quiet, other_rank}) {
    ProgressBar bar(10, "work", options);
    for (int i = 0; i < 10; ++i) bar.advance();
    bar.finish();
    CHECK(bar.done() == 10);
  }
  CHECK(channel.text().empty());
}

TEST_CASE("a bar takes 0 steps, more steps than it was told, and a dumb terminal") {
  const Channel terminal = Channel::terminal(100);
  { ProgressBar bar(0, "none", options_for(terminal)); }
  CHECK_THAT(screen_of(terminal.text())[0], ContainsSubstring("none: 100%"));
  {
    ProgressBar bar(2, "more", options_for(terminal));
    bar.advance(5);
  }
  CHECK_THAT(screen_of(terminal.text())[0], ContainsSubstring("5/2"));
  EnvVars dumb;
  dumb.set("TERM", "dumb");
  {
    ProgressBar bar(2, "dumb", options_for(terminal, dumb));
    bar.advance(2);
  }
  CHECK(terminal.text().find('\r') == std::string::npos);
}

TEST_CASE("below a launcher that shows a terminal a bar is drawn through its pipe") {
  const Channel channel = Channel::pipe();
  EnvVars environment;
  environment.set("ACCELERATE_TERMINAL", "1");
  environment.set("COLUMNS", "60");
  { ProgressBar bar(2, "work", options_for(channel, environment)); }
  const std::string text = channel.text();
  CHECK(AccelRun::count_in(text, "\r") == 3);  // drawn, cleared, left standing
  CHECK(screen_of(text)[0].size() < 60);
}

TEST_CASE("times as clocks show them") {
  CHECK(clock_text(0) == "00:00");
  CHECK(clock_text(65.9) == "01:05");
  CHECK(clock_text(3665) == "1:01:05");
  CHECK(clock_text(-1) == "00:00");
}
