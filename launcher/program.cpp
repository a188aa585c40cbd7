#include "launcher/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"

namespace accelerate::cli {
namespace {

constexpr const char* kUsualPath = "/usr/local/bin:/usr/bin:/bin";

bool is_regular_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool has_interpreter_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return file.get() == '#' && file.get() == '!';
}

// A script that says how to run itself is a program like any other.
[[noreturn]] void throw_python_script(const std::string& name) {
  throw LaunchError(
      {.what = concat(name, " is a Python script, not a program"),
       .hint = concat("For HF Accelerate in Python, type: accelerate launch ", shell_quote(name),
                      ". To start it as it is: accel launch python3 ", shell_quote(name), ".")});
}

void check_executable(const std::string& path) {
  if (is_directory(path)) {
    throw LaunchError(
        {.what = concat(path, " is a folder, not a program"), .hint = "Name the program inside it."});
  }
  if (!is_regular_file(path)) {
    const std::string reason = errno == ENOENT || errno == 0 ? "there is no such file" : errno_text(errno);
    throw LaunchError(
        {.what = concat("program ", path, ": ", reason),
         .hint = "Check the path; flags of `accel launch` go before it, flags of the program after it."});
  }
  const bool executable = ::access(path.c_str(), X_OK) == 0;
  if (path.ends_with(".py") && !(executable && has_interpreter_line(path))) throw_python_script(path);
  if (!executable) {
    throw LaunchError({.what = concat("program ", path, " is not executable"),
                       .hint = concat("Type: chmod +x ", shell_quote(path),
                                      ", or name the program that was built from it.")});
  }
}

}  // namespace

std::string find_program(const std::string& name, const EnvVars& variables) {
  if (name.empty()) throw LaunchError({.what = "the name of the program is empty"});
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    check_executable(name);
    return name;
  }
  for (const std::string& folder : split(variables.get(variables::kPath).value_or(kUsualPath), ':')) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (is_regular_file(path) && ::access(path.c_str(), X_OK) == 0) return path;
  }
  const std::string here = "./" + name;
  if (name.ends_with(".py") && is_regular_file(here)) throw_python_script(name);
  if (is_regular_file(here) || is_directory(here)) {
    check_executable(here);
    throw LaunchError({.what = concat("program ", name, " is not in PATH, but here"),
                       .hint = concat("Type: accel launch ... ", shell_quote(here), ".")});
  }
  throw LaunchError(
      {.what = concat("program ", name, " is neither in PATH nor in this folder"),
       .hint = "Check the name; flags of `accel launch` go before it, flags of the program after it."});
}

}  // namespace accelerate::cli
