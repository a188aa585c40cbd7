#include "launcher/hostfile.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

constexpr int64_t kMostSlots = 1'000'000;
constexpr const char* kExpected = "lines such as: node1 slots=4";

// Where something is wrong.
struct Place {
  const std::string& path;
  int line;
};

[[noreturn]] void fail(const Place& place, const std::string& what) {
  throw ConfigError(
      {.what = concat("hostfile ", place.path, ":", place.line, ": ", what), .expected = kExpected});
}

int slots_of(const std::string& text, const Place& place) {
  const auto number = parse_int(text);
  if (!number || *number < 1 || *number > kMostSlots)
    fail(place, concat("slots '", text, "' is no number of processes"));
  return static_cast<int>(*number);
}

HostEntry read_line(const std::string& text, const Place& place) {
  // Open MPI allows blanks around '='.
  std::string joined;
  for (const char c : text) {
    if (c == '=') joined = trim(joined);
    const bool after_equals = !joined.empty() && joined.back() == '=';
    if (!(after_equals && (c == ' ' || c == '\t'))) joined += c;
  }
  std::istringstream words(joined);
  HostEntry out;
  words >> out.name;
  if (out.name.find('=') != std::string::npos) fail(place, "a line begins with the machine's name");
  std::string word;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = to_lower(word.substr(0, equals));
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "slots" || key == "count" || key == "cpu") {
      out.slots = slots_of(value, place);
    } else if (key == "max_slots" || key == "max-slots" || key == "slots_max") {
      slots_of(value, place);
    } else if (equals == std::string::npos || (key != "user" && key != "username" && key != "port")) {
      fail(place, concat("unknown word '", word, "'"));
    }
  }
  return out;
}

void add(std::vector<HostEntry>& hosts, HostEntry entry) {
  const auto same = [&](const HostEntry& other) { return other.name == entry.name; };
  const auto found = std::find_if(hosts.begin(), hosts.end(), same);
  if (found == hosts.end()) {
    hosts.push_back(std::move(entry));
  } else {
    found->slots = found->slots.value_or(1) + entry.slots.value_or(1);
  }
}

}  // namespace

std::vector<HostEntry> read_hostfile(const std::string& path, const std::string& named_by) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  std::ifstream file(path);
  if (folder || !file) {
    throw ConfigError({.what = concat("hostfile ", shell_quote(path),
                                      named_by.empty() ? "" : concat(" (named by ", named_by, ")"), ": ",
                                      folder ? "is a folder" : errno_text(errno)),
                       .hint = concat("Name a file with --mpirun_hostfile, with ", kExpected, ".")});
  }
  std::vector<HostEntry> hosts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string text = trim(line.substr(0, line.find('#')));
    if (!text.empty()) add(hosts, read_line(text, {path, number}));
  }
  if (hosts.empty())
    throw ConfigError(
        {.what = concat("hostfile ", shell_quote(path), " names no machine"), .expected = kExpected});
  return hosts;
}

}  // namespace accelerate::cli
