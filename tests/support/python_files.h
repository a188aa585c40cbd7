#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "accelerate/core/strings.h"

namespace accelerate::test {

// A folder with files that a Python script wrote; it runs in that folder. `variable` is the environment
// variable that names the Python.
class PythonFiles {
 public:
  PythonFiles(const char* variable, const std::string& script) {
    const char* python = std::getenv(variable);
    if (python == nullptr) throw std::runtime_error(concat(variable, " is not set"));
    std::string text = (std::filesystem::temp_directory_path() / "accelerate-files-XXXXXX").string();
    if (::mkdtemp(text.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = text;
    std::ofstream(path_ / "write.py") << "import os, sys\nos.chdir(sys.argv[1])\n" << script;
    const std::string command =
        concat(shell_quote(python), " ", shell_quote((path_ / "write.py").string()), " ", shell_quote(text));
    if (std::system(command.c_str()) != 0) {
      std::filesystem::remove_all(path_);
      throw std::runtime_error("the script failed");
    }
  }
  ~PythonFiles() { std::filesystem::remove_all(path_); }
  PythonFiles(const PythonFiles&) = delete;
  PythonFiles& operator=(const PythonFiles&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace accelerate::test
