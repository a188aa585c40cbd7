#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/core/log.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate {

struct ProgressBarOptions {
  /// Whose lines it keeps clear of; its level decides whether anything is shown: from warning on, nothing is.
  std::shared_ptr<Logger> logger = nullptr;
  /// False: nothing is shown. Accelerator::progress_bar() sets it on the local main process.
  bool shown = true;
  /// What is counted, in the rate: "12.3 steps/s".
  std::string unit = "steps";
  /// Where to draw.
  int fd = STDERR_FILENO;
  /// Whether that is a terminal that can rewrite a line. Default: asked of the descriptor and of TERM, or "1"
  /// in ACCELERATE_TERMINAL, which the launcher sets.
  std::optional<bool> terminal = std::nullopt;
  /// Read for ACCELERATE_TERMINAL, TERM and COLUMNS. Default: this process's own.
  std::optional<EnvVars> environment = std::nullopt;
  /// A terminal is redrawn at most this often.
  std::chrono::milliseconds redraw_interval = std::chrono::milliseconds(100);
  /// Elsewhere a line is written at every tenth of the total, and when this long has passed without one; each
  /// such pause is twice the one before, up to ten minutes.
  std::chrono::milliseconds line_interval = std::chrono::seconds(30);
};

/// How far a loop has come: a line that is redrawn in place on a terminal,
///
///     epoch 1:  42% |#########............| 420/1000 [00:12<00:16, 35.0 steps/s, loss 0.31]
///
/// and plain lines at growing intervals where the output is no terminal. Thread-safe.
///
///     ProgressBar bar(loader.size(), "epoch 1", {.logger = logger});
///     for (auto& batch : loader) { ...; bar.advance(); }
class ProgressBar {
 public:
  /// `total`: how often advance() will be called; nothing: not known, and no percentage is shown.
  ProgressBar(std::optional<int64_t> total, std::string description, ProgressBarOptions options = {});
  /// As finish().
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `count` more are done.
  void advance(int64_t count = 1);
  /// Shown at the end of the line from the next drawing on: "loss 0.31". Control characters become blanks.
  void set_note(std::string note);
  /// Draws the last state and leaves it standing. Later calls of anything do nothing.
  void finish();

  int64_t done() const;

 private:
  class Painter;
  std::unique_ptr<Painter> painter_;
};

/// "01:05", "1:01:05".
std::string clock_text(double seconds);

}  // namespace accelerate
