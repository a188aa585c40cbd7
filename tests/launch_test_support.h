#pragma once

// Drives the program `accel` from outside, as a user or a batch system would.

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/core/child_process.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate::testing {

// Guards against hangs only: every wait below ends long before when all is well.
inline constexpr std::chrono::seconds kLimit{30};

inline std::string bin(const std::string& name) {
  return std::string(ACCELERATE_TEST_BIN_DIR) + "/" + name;
}

// Waits in steps until `done` holds; false after kLimit.
inline bool eventually(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(kLimit);
  while (!done()) {
    if (deadline.expired()) return false;
    ::usleep(2000);
  }
  return true;
}

// A folder that is removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "accel-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

// Processes whose environment holds `entry` ("NAME=value"), zombies excluded since theirs is empty.
inline std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> out;
  std::error_code error;
  for (const auto& item : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = parse_int(item.path().filename().string());
    if (!pid) continue;
    const std::string environment = '\0' + read_file(item.path() / "environ");
    if (environment.find('\0' + entry + '\0') != std::string::npos) out.push_back(static_cast<pid_t>(*pid));
  }
  return out;
}

inline std::set<std::string> shared_memory_entries() {
  std::set<std::string> out;
  std::error_code error;
  for (const auto& item : std::filesystem::directory_iterator("/dev/shm", error)) {
    out.insert(item.path().filename().string());
  }
  return out;
}

struct RunOptions {
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::string working_directory = {};
  bool inherit_stdin = false;
};

// One `accel` and all that it prints. Every process below it carries ACCEL_TEST_RUN=<unique>, which tells
// whether any is left.
class AccelRun {
 public:
  explicit AccelRun(std::vector<std::string> arguments, const RunOptions& options = {},
                    const std::string& program = bin("accel")) {
    static int count = 0;
    mark_ = concat("ACCEL_TEST_RUN=", ::getpid(), ".", ++count);
    EnvVars variables = EnvVars::from_process();
    // The developer's own configuration must not decide a test.
    variables.set("XDG_CONFIG_HOME", "/nonexistent");
    variables.set("HF_HOME", "/nonexistent");
    variables.unset("OMP_NUM_THREADS");
    for (const auto& [name, value] : options.environment) variables.set(name, value);
    std::vector<std::string> environment = {mark_};
    for (const auto& [name, value] : variables.values()) environment.push_back(name + "=" + value);
    started_ = std::chrono::steady_clock::now();
    child_ = spawn({.program = program,
                    .arguments = std::move(arguments),
                    .environment = environment,
                    .working_directory = options.working_directory,
                    .inherited_fds = {},
                    .inherit_stdin = options.inherit_stdin,
                    .standard_output = ChildOutput::kPipe,
                    .standard_error = ChildOutput::kPipe,
                    .keep_ignored = {}});
  }

  pid_t pid() const { return child_.pid(); }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  std::string all() const { return out_ + err_; }

  // Reads until `text` has been printed `times` times; false when the program ended or kLimit passed before.
  bool wait_for(const std::string& text, int times = 1) {
    const Deadline deadline = Deadline::after(kLimit);
    while (count_in(all(), text) < times) {
      if (deadline.expired() || !read_some(deadline)) return count_in(all(), text) >= times;
    }
    return true;
  }

  void signal(int number) { child_.signal(number); }
  void signal_group(int number) { child_.signal_group(number); }

  // Exit code, 128 + signal, or nothing when it did not end in time.
  std::optional<int> finish(std::chrono::seconds limit = kLimit) {
    const Deadline deadline = Deadline::after(limit);
    while (!child_.poll() && read_some(deadline)) {
    }
    const auto status = child_.wait(deadline);
    while (read_some(Deadline::after(std::chrono::seconds(1)))) {
    }
    if (!status) return std::nullopt;
    return status->shell_code();
  }

  // No process of the run exists, the launcher and its guard included.
  bool nothing_left() const {
    return eventually([this] { return processes_with(mark_).empty(); });
  }
  std::vector<pid_t> processes() const { return processes_with(mark_); }

  std::chrono::milliseconds since_start() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started_);
  }

  static int count_in(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

 private:
  // False when both pipes are closed or the deadline has passed.
  bool read_some(const Deadline& deadline) {
    pollfd items[2] = {{child_.stdout_pipe().get(), POLLIN, 0}, {child_.stderr_pipe().get(), POLLIN, 0}};
    if (items[0].fd < 0 && items[1].fd < 0) return false;
    if (::poll(items, 2, deadline.poll_timeout_ms()) <= 0) return false;
    if (items[0].revents != 0) read_pipe(child_.stdout_pipe(), out_);
    if (items[1].revents != 0) read_pipe(child_.stderr_pipe(), err_);
    return true;
  }

  static void read_pipe(UniqueFd& pipe, std::string& text) {
    char buffer[4096];
    const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
    } else {
      pipe.reset();
    }
  }

  std::string mark_;
  ChildProcess child_;
  std::string out_;
  std::string err_;
  std::chrono::steady_clock::time_point started_;
};

// "launch --cpu --num_processes N flags... rank_script script..."
inline std::vector<std::string> launch_words(int processes, std::vector<std::string> script,
                                             const std::vector<std::string>& flags = {}) {
  std::vector<std::string> out = {"launch", "--cpu", "--num_processes", std::to_string(processes)};
  out.insert(out.end(), flags.begin(), flags.end());
  out.push_back(bin("rank_script"));
  out.insert(out.end(), script.begin(), script.end());
  return out;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out = split(text, '\n');
  if (!out.empty() && out.back().empty()) out.pop_back();
  return out;
}

// The last `count` lines of a text.
inline std::string last_lines(const std::string& text, size_t count) {
  std::vector<std::string> lines = lines_of(text);
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(count));
  return join(lines, "\n");
}

}  // namespace accelerate::testing
