#include "launcher/config_save.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate::cli {
namespace {

// Holds signals back, so that Ctrl-C leaves no temporary file behind.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw ConfigError({.what = concat("can't save ", shell_quote(path), ": ", what),
                     .expected = {},
                     .got = {},
                     .hint = "Name another place with --config_file FILE."});
}

// Removes the temporary file again unless it has become the file.
class Unfinished {
 public:
  explicit Unfinished(std::string path) : path_(std::move(path)) {}
  ~Unfinished() {
    if (!done_) ::unlink(path_.c_str());
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  void done() { done_ = true; }

 private:
  std::string path_;
  bool done_ = false;
};

void write_all(int fd, const std::string& text, const std::string& path) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, errno_text(errno));
    written += static_cast<size_t>(count);
  }
}

void sync_folder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems can't sync a folder; the file itself is safe by then.
  if (fd) (void)::fsync(fd.get());
}

}  // namespace

void replace_file(const std::string& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::path target = path;
  if (std::filesystem::is_symlink(target, ignored))
    target = std::filesystem::weakly_canonical(target, ignored);
  if (std::filesystem::is_directory(target, ignored)) fail(path, "it is a directory");
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(path, error.message());

  const SignalsHeld held;
  const std::string temporary =
      (folder / concat(".", target.filename().string(), ".", ::getpid(), ".tmp")).string();
  ::unlink(temporary.c_str());  // of a process of the same number that was killed
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail(path, errno_text(errno));
  Unfinished unfinished(temporary);
  struct stat before {};
  if (::stat(target.c_str(), &before) == 0) (void)::fchmod(fd.get(), before.st_mode & 07777);
  write_all(fd.get(), text, path);
  if (::fsync(fd.get()) != 0) fail(path, errno_text(errno));
  fd.reset();
  if (::rename(temporary.c_str(), target.c_str()) != 0) fail(path, errno_text(errno));
  unfinished.done();
  sync_folder(folder.string());
}

void save_config(const std::string& path, const Config& config) {
  replace_file(path, path.ends_with(".json") ? write_json(config) : write_yaml(config));
}

}  // namespace accelerate::cli
