#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/config/load.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::test {

/// A folder that is gone with its owner.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "accelerate_config_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// A machine that does not depend on where the tests run.
inline MachineFacts cpu_box(int cores = 4) {
  return {.cores = cores, .cuda_devices = 0};
}
inline MachineFacts gpu_box(int devices) {
  return {.cores = 16, .cuda_devices = devices};
}

/// One on which CUDA_VISIBLE_DEVICES names these devices.
inline MachineFacts gpu_box(const std::vector<std::string>& visible) {
  return {.cores = 16, .cuda_devices = static_cast<int>(visible.size()), .visible_ids = visible};
}

/// Variables, as "NAME", "value" pairs.
inline EnvVars variables(const std::vector<std::pair<std::string, std::string>>& values) {
  EnvVars out;
  for (const auto& [name, value] : values) out.set(name, value);
  return out;
}

/// Reads `text` as a file, with nothing else given.
inline InspectedConfig inspect_text(const std::string& text, const std::string& name = "c.yaml",
                                    MachineFacts machine = cpu_box()) {
  const TempFolder folder;
  const EnvVars none;
  return inspect_config({.file = folder.write(name, text), .environment = none, .machine = machine});
}

/// The message with which a text is refused; empty if it is taken.
inline std::string refusal(const std::string& text, const std::string& name = "c.yaml") {
  const TempFolder folder;
  const EnvVars none;
  try {
    (void)load_config({.file = folder.write(name, text), .environment = none, .machine = cpu_box()});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return {};
}

inline std::vector<std::string> described(const std::vector<Problem>& problems, Severity severity) {
  std::vector<std::string> out;
  for (const Problem& problem : problems) {
    if (problem.severity == severity) out.push_back(describe(problem));
  }
  return out;
}

inline std::string joined(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& problem : problems) {
    out += concat(problem.severity == Severity::kError ? "error " : "warning ", describe(problem), "\n");
  }
  return out;
}

}  // namespace accelerate::test
