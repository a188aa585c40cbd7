#include "launcher/config_save.h"

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"

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

// Where a link leads, also to a file that does not exist yet.
std::filesystem::path without_links(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  return error ? std::filesystem::path(path) : target;
}

}  // namespace

void replace_file(const std::string& path, const std::string& text) {
  const std::filesystem::path target = without_links(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(target, ignored)) fail(path, "it is a directory");
  const SignalsHeld held;
  try {
    FileSystem& files = system_files();
    files.create_directories(parent_directory(target.string()));
    struct stat before {};
    const bool there = ::stat(target.c_str(), &before) == 0;
    const unsigned mode = there ? before.st_mode & 07777 : 0666;
    write_file_atomically(files, target.string(), text, mode);
    // What the mask of this shell took away from the mode that the file had.
    if (there) (void)::chmod(target.c_str(), mode);
  } catch (const CheckpointError& error) {
    fail(path, concat(error.text().what, ": ", error.text().got));
  }
}

void save_config(const std::string& path, const Config& config) {
  replace_file(path, path.ends_with(".json") ? write_json(config) : write_yaml(config));
}

}  // namespace accelerate::cli
