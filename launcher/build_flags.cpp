#include "launcher/build_flags.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

namespace fs = std::filesystem;

// CMake writes "LINKER:a,b" for what compilers know as "-Wl,a,b".
std::string compiler_spelling(const std::string& option) {
  constexpr std::string_view kLinker = "LINKER:";
  return option.starts_with(kLinker) ? "-Wl," + option.substr(kLinker.size()) : option;
}

std::string absolute(const fs::path& folder, const std::string& entry) {
  if (entry.starts_with("-")) return entry;
  return (folder / entry).lexically_normal().string();
}

}  // namespace

BuildFlags read_build_flags() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path file = (program.parent_path() / ACCELERATE_BUILD_FLAGS).lexically_normal();
  std::ifstream stream(file);
  if (!stream) {
    throw LaunchError(
        {.what = concat(shell_quote(file.string()), " is not there, so sources can't be compiled"),
         .hint = "Install accelerate anew (cmake --install), or build the program yourself."});
  }
  BuildFlags out;
  out.file = file.string();
  try {
    const auto json = nlohmann::json::parse(stream);
    const auto list = [&json](const char* key) { return json.at(key).get<std::vector<std::string>>(); };
    out.version = json.at("version").get<std::string>();
    out.torch = json.at("torch").get<bool>();
    out.compiler = json.at("compiler").get<std::string>();
    out.definitions = list("definitions");
    out.compile_options = list("compile_options");
    for (const auto& option : list("link_options")) out.link_options.push_back(compiler_spelling(option));
    const fs::path folder = file.parent_path();
    for (const auto& path : list("include_directories"))
      out.include_directories.push_back(absolute(folder, path));
    for (const auto& path : list("libraries")) out.libraries.push_back(absolute(folder, path));
    for (const auto& path : list("run_paths")) out.run_paths.push_back(absolute(folder, path));
  } catch (const nlohmann::json::exception& damage) {
    throw LaunchError({.what = concat(shell_quote(file.string()), " is damaged: ", damage.what()),
                       .hint = "Install accelerate anew (cmake --install)."});
  }
  return out;
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> out;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      in_word = false;
      continue;
    }
    if (!in_word) out.emplace_back();
    in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      out.back() += text[++i];
    } else {
      out.back() += c;
    }
  }
  return out;
}

}  // namespace accelerate::cli
