#include "accelerate/config/config_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>

#include "accelerate/config/excerpt.h"
#include "accelerate/config/json_reader.h"
#include "accelerate/config/load.h"
#include "accelerate/config/yaml_diagnosis.h"
#include "accelerate/config/yaml_reader.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {
namespace {

using detail::FileTerms;

// Real files have about 20 lines. The limit keeps garbage from costing the parser's time.
constexpr size_t kMaxFileBytes = 256 * 1024;

[[noreturn]] void fail(const std::string& what, const std::string& hint) {
  throw ConfigError({.what = what, .expected = {}, .got = {}, .hint = hint});
}

std::string named(const FileTerms& terms, const std::string& path) {
  return concat(terms.noun, " ", shell_quote(path));
}

[[noreturn]] void fail_to_open(const std::string& path, const FileTerms& terms, int error_number) {
  if (error_number == ENOENT || error_number == ENOTDIR) {
    const auto folder = std::filesystem::path(path).parent_path();
    // Without extensions, which would make any two names alike.
    std::vector<std::string> stems;
    std::error_code ignored;
    if (std::filesystem::is_symlink(path, ignored)) {
      fail(concat(named(terms, path), " is a link to ",
                  shell_quote(std::filesystem::read_symlink(path, ignored).string()),
                  ", which does not exist"),
           {});
    }
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.empty() ? "." : folder, ignored)) {
      files[entry.path().stem().string()] = entry.path().filename().string();
    }
    for (const auto& [stem, name] : files) stems.push_back(stem);
    std::string hint = terms.made_by_config
                           ? concat("Make one with: accel config --config_file ", shell_quote(path))
                           : std::string("A relative path starts at the folder that you start the job in.");
    if (auto near = nearest_name(std::filesystem::path(path).stem().string(), stems)) {
      hint = concat("Did you mean ", (folder / files[*near]).string(), "? ", hint);
    }
    fail(concat(named(terms, path), " does not exist"), hint);
  }
  fail(concat(named(terms, path), " can't be read: ", errno_text(error_number)),
       error_number == EACCES ? concat("Give yourself the right to read it: chmod u+r ", shell_quote(path))
                              : "");
}

// Waits for a pipe's next bytes ("--config_file <(make_config)"); regular files never need it.
void wait_for_pipe(int fd, const std::string& path, const FileTerms& terms, const Deadline& deadline) {
  pollfd waiting{fd, POLLIN, 0};
  const int ready = ::poll(&waiting, 1, deadline.poll_timeout_ms());
  if (ready == 0) fail(concat(named(terms, path), ": no data within 10 seconds"), {});
}

std::string read_all(int fd, const std::string& path, const FileTerms& terms) {
  std::string text;
  std::array<char, 16384> buffer{};
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  for (;;) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count == 0) return text;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      wait_for_pipe(fd, path, terms, deadline);
      continue;
    }
    if (count < 0) fail_to_open(path, terms, errno);
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > kMaxFileBytes) {
      fail(concat(named(terms, path), " is larger than ", format_bytes(kMaxFileBytes),
                  "; a configuration has a few kilobytes"),
           "Is this the right file?");
    }
  }
}

std::string read_bytes(const std::string& path, const FileTerms& terms) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) fail_to_open(path, terms, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_to_open(path, terms, errno);
  if (S_ISDIR(info.st_mode)) {
    fail(concat(named(terms, path), " is a directory"),
         terms.made_by_config
             ? concat("Name the file, for example ",
                      shell_quote((std::filesystem::path(path) / "default_config.yaml").string()), ".")
             : std::string("Name the file in it."));
  }
  return read_all(fd.get(), path, terms);
}

void check_is_text(const std::string& text, const std::string& path, const FileTerms& terms) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
    fail(concat(named(terms, path), " is UTF-16"), "Save it as UTF-8.");
  }
  int line = 1;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') ++line;
    if (byte >= 0x20 && byte != 0x7f) continue;
    if (c == '\n' || c == '\r' || c == '\t') continue;
    fail(concat(path, ":", line, ": not a text file (byte ", static_cast<int>(byte), ")"),
         "Is this the right file?");
  }
}

// As `accelerate env` prints a configuration.
bool is_list_of_keys(const detail::RawNode& root) {
  return root.kind == detail::RawNode::Kind::kList && !root.items.empty() &&
         root.items.front().kind == detail::RawNode::Kind::kMap;
}

std::string how_to_write(const std::string& path, const FileTerms& terms) {
  if (!terms.made_by_config) return {};
  return concat("Write it with: accel config --force --config_file ", shell_quote(path));
}

std::string home_folder(const EnvVars& variables, std::string_view variable, std::string_view below_home) {
  if (auto folder = variables.get(variable)) return *folder;
  if (auto home = variables.get("HOME")) return *home + std::string(below_home);
  return {};
}

std::optional<std::string> existing_default(const std::string& folder) {
  for (const char* name : {"default_config.yaml", "default_config.json"}) {
    const auto path = std::filesystem::path(folder) / "accelerate" / name;
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) return path.string();
  }
  return std::nullopt;
}

}  // namespace

namespace detail {

std::string read_text_file(const std::string& path, const FileTerms& terms) {
  std::string text = read_bytes(path, terms);
  check_is_text(text, path, terms);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  // A carriage return alone ends lines in old files.
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && (i + 1 == text.size() || text[i + 1] != '\n')) text[i] = '\n';
  }
  if (trim(text).empty()) fail(concat(named(terms, path), " is empty"), how_to_write(path, terms));
  return text;
}

RawNode read_config_file(const std::string& path) {
  const FileTerms terms;
  const std::string text = read_text_file(path, terms);
  const bool json = path.ends_with(".json") || (trim(text).front() == '{' && is_json(text));
  RawNode root = json ? read_json(text, path) : read_yaml(text, path);
  if (root.kind == RawNode::Kind::kNull) {
    fail(concat(named(terms, path), " holds no keys"), how_to_write(path, terms));
  }
  if (root.kind == RawNode::Kind::kScalar && lacks_blank_after_colon(root.text)) {
    fail(concat(path, ":", root.line, ": no blank after the colon in '", excerpt(root.text), "'"),
         "Write 'key: value' with a blank after the colon.");
  }
  if (root.kind != RawNode::Kind::kMap) {
    fail(concat(path, ":", root.line, ": ", root.kind == RawNode::Kind::kList ? "a list" : "a single text",
                " is no configuration"),
         is_list_of_keys(root) ? "Remove the '- ' before the keys."
                               : "It should have lines such as 'distributed_type: MULTI_CPU'.");
  }
  return root;
}

}  // namespace detail

std::optional<std::string> find_default_config_file(const EnvVars& variables) {
  if (auto named = variables.get("ACCELERATE_CONFIG_FILE")) return named;
  const std::string ours = home_folder(variables, "XDG_CONFIG_HOME", "/.config");
  if (!ours.empty()) {
    if (auto found = existing_default(ours)) return found;
  }
  std::string theirs = variables.get("HF_HOME").value_or("");
  if (theirs.empty()) {
    const std::string cache = home_folder(variables, "XDG_CACHE_HOME", "/.cache");
    if (!cache.empty()) theirs = cache + "/huggingface";
  }
  if (theirs.empty()) return std::nullopt;
  return existing_default(theirs);
}

std::string default_save_path(const EnvVars& variables) {
  if (auto named = variables.get("ACCELERATE_CONFIG_FILE")) return *named;
  const std::string folder = home_folder(variables, "XDG_CONFIG_HOME", "/.config");
  if (folder.empty()) {
    fail("no place to save the configuration: neither XDG_CONFIG_HOME nor HOME is set",
         "Name a file: accel config --config_file FILE.");
  }
  return folder + "/accelerate/default_config.yaml";
}

}  // namespace accelerate
