// Logs to trackers and stays, or draws a progress bar.
//   log DIRECTORY TRACKERS COUNT [wait | MILLISECONDS]
//                           TRACKERS separated by commas. "wait": sleeps for ever without an end; a number:
//                           the length of a step, and each step's time is watched
//   bar TOTAL MILLISECONDS  a bar of that many steps, each of that length; a log line in the middle
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <string>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/progress_bar.h"
#include "accelerate/tracking/trackers/tracker_set.h"

using namespace accelerate;

namespace {

void log(const std::string& directory, const std::string& names, int64_t count, const std::string& then) {
  TrackerSetOptions options{.log_with = {}, .project = {.project_dir = directory}};
  options.environment = EnvVars::from_process();
  TrackerInitKwargs kwargs;
  for (const std::string& name : split(names, ',')) {
    options.log_with.emplace_back(name);
    if (name != "mlflow") kwargs[name] = {{"flush_secs", "0.02"}};
  }
  const bool has_server = names.find("mlflow") != std::string::npos;
  if (has_server) {
    if (const auto seconds = options.environment.get("FINISH_SECONDS")) {
      kwargs["mlflow"] = {{"finish_timeout_secs", *seconds}};
    }
  }
  options.settings = {{"mixed_precision", "bf16", "command line --mixed_precision"}};
  TrackerSet trackers(std::move(options));
  trackers.init("script", {{"lr", 0.125}, {"optimizer", "adamw"}, {"nesterov", true}, {"layers", 3}}, kwargs);
  std::chrono::steady_clock::duration longest{};
  for (int64_t step = 0; step < count; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    trackers.log({{"loss", 1.0 / static_cast<double>(step + 1)}, {"lr", 0.125}}, step);
    longest = std::max(longest, std::chrono::steady_clock::now() - begin);
    if (const auto pause = parse_int(then)) ::usleep(static_cast<useconds_t>(*pause * 1000));
  }
  if (has_server) trackers.log({{"stage", "größer"}, {"odd:name", 1}, {"bad", NAN}, {"up", INFINITY}}, count);
  if (names.find("tensorboard") != std::string::npos) {
    const float weights[] = {-1, 0, 0.5, 2};
    const uint8_t pixels[] = {0, 255, 255, 0, 128, 64};
    trackers.log_histogram("weights", weights, 5);
    trackers.log_image("picture", {pixels, 2, 3, 1}, 6);
    trackers.log_text("notes", "größer than <b>", 7);
  }
  std::cout << "logged" << std::endl;
  if (has_server) {
    std::cout << "longest call of log: "
              << std::chrono::duration_cast<std::chrono::milliseconds>(longest).count() << " ms" << std::endl;
  }
  while (then == "wait") ::pause();
  trackers.finish();
}

void draw(int64_t total, int64_t milliseconds) {
  const auto logger = std::make_shared<Logger>();
  ProgressBar bar(total, "epoch 1", {.logger = logger});
  for (int64_t step = 0; step < total; ++step) {
    ::usleep(static_cast<useconds_t>(milliseconds * 1000));
    bar.set_note(concat("loss ", step));
    bar.advance();
    if (step == total / 2) logger->info("half way");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string action = argc > 1 ? argv[1] : "";
  try {
    if (action == "log" && argc >= 5) {
      log(argv[2], argv[3], parse_int(argv[4]).value_or(0), argc > 5 ? argv[5] : "");
    } else if (action == "bar" && argc == 4) {
      draw(parse_int(argv[2]).value_or(0), parse_int(argv[3]).value_or(0));
    } else {
      std::cerr << "see the comment at the top\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << error_message(error) << "\n";
    return exit_code(error);
  }
}
