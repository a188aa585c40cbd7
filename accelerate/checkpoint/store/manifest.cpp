#include "accelerate/checkpoint/store/manifest.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "accelerate-checkpoint";
constexpr const char* kOwnChecksum = "manifest_xxh3_64";
constexpr uint64_t kMostBytes = uint64_t{1} << 28;
constexpr int kMaxDepth = 64;

[[noreturn]] void damaged(const std::string& path, const std::string& what, const std::string& hint = {}) {
  throw CheckpointError(
      {.what = concat(path, ": ", what),
       .hint = hint.empty() ? "The checkpoint is damaged; use another one or another copy of it." : hint});
}

// Bytes that are no UTF-8 must not make an error of an error.
std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json parse_json(const std::string& text, const std::string& path) {
  if (text.empty()) damaged(path, "the file is empty");
  if (text.find_first_not_of('\0') == std::string::npos) {
    damaged(path, concat("the file is nothing but ", text.size(), " zero bytes, as after a loss of power"));
  }
  const auto not_too_deep = [&path](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) damaged(path, "its JSON is nested too deeply");
    return true;
  };
  try {
    return Json::parse(text, not_too_deep);
  } catch (const nlohmann::json::parse_error& error) {
    if (error.byte > text.size()) {
      damaged(path, concat("cut off after ", text.size(), " bytes"));
    }
    damaged(path, concat("no valid JSON at byte ", error.byte));
  } catch (const nlohmann::json::exception& error) {  // a number that is too large for any type
    damaged(path, concat("its JSON can't be read (", error.what(), ")"));
  }
}

const Json& member(const Json& object, const std::string& name, const std::string& path) {
  const auto found = object.find(name);
  if (found == object.end()) damaged(path, concat("it lacks '", name, "'"));
  return *found;
}

int64_t number(const Json& object, const std::string& name, const std::string& path) {
  const Json& value = member(object, name, path);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                               : value.is_number_integer() && value.get<int64_t>() >= 0;
  if (!fits) {
    damaged(path, concat("'", name, "' should be a whole number from 0 on and is ", text_of(value)));
  }
  return value.get<int64_t>();
}

std::string string(const Json& object, const std::string& name, const std::string& path) {
  const Json& value = member(object, name, path);
  if (!value.is_string()) damaged(path, concat("'", name, "' should be a text and is ", text_of(value)));
  return value.get<std::string>();
}

uint64_t checksum(const Json& object, const std::string& name, const std::string& path) {
  const std::string text = string(object, name, path);
  const auto value = parse_checksum(text);
  if (!value) damaged(path, concat("'", name, "' should be 16 hexadecimal digits and is '", text, "'"));
  return *value;
}

void check_version(const Json& json, const std::string& path) {
  if (!json.is_object()) damaged(path, "its JSON is no object");
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat) {
    damaged(path, concat("it is no manifest of a checkpoint (it lacks \"format\": \"", kFormat, "\")"),
            "The folder was written by another program; name the folder of a checkpoint.");
  }
  const int64_t version = number(json, "format_version", path);
  if (version < 1) damaged(path, concat("format version ", version, " does not exist"));
  if (version <= CheckpointManifest::kFormatVersion) return;
  const auto writer = json.find("accelerate_version");
  throw CheckpointError(
      {.what = path,
       .expected = concat("format version ", CheckpointManifest::kFormatVersion, " or older"),
       .got = concat("version ", version,
                     writer != json.end() && writer->is_string()
                         ? concat(", written by accelerate ", writer->get<std::string>())
                         : std::string()),
       .hint = concat("This is accelerate ", kVersion, "; read the checkpoint with the newer release.")});
}

void check_own_checksum(Json json, const std::string& path) {
  const uint64_t said = checksum(json, kOwnChecksum, path);
  json.erase(kOwnChecksum);
  const uint64_t is = Xxh3::of(text_of(json));
  if (said != is) {
    damaged(path, concat("its checksum is ", checksum_text(is), " and should be ", checksum_text(said),
                         ", so some of it was changed"));
  }
}

// The problem with a list of files, or "".
std::string problem_with(const std::vector<CheckpointFile>& files) {
  std::set<std::string> seen;
  for (const CheckpointFile& file : files) {
    const std::string problem = problem_with_file_path(file.path);
    if (!problem.empty()) return problem;
    if (!seen.insert(file.path).second) return concat("file '", file.path, "' is listed twice");
  }
  return {};
}

}  // namespace

std::string problem_with_file_path(const std::string& path) {
  const auto bad = [&path](const char* why) { return concat("file '", path, "' ", why); };
  if (path.empty()) return "a file has no name";
  if (path.find('\0') != std::string::npos) return bad("has a zero byte in its name");
  for (const std::string& part : split(path, '/')) {
    if (part.empty() || part == "." || part == "..") return bad("is no name below the checkpoint's folder");
  }
  if (path == CheckpointManifest::kFileName) return bad("has the manifest's own name");
  return {};
}

std::string utc_time_text() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  const std::time_t seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(micros % 1'000'000));
  return text;
}

uint64_t CheckpointManifest::total_bytes() const {
  uint64_t out = 0;
  for (const CheckpointFile& file : files) out += file.size_bytes;
  return out;
}

std::string write_manifest(const CheckpointManifest& manifest) {
  const std::string problem = problem_with(manifest.files);
  if (!problem.empty()) throw CheckpointError({.what = concat("writing a manifest: ", problem)});
  Json extra = Json::parse(manifest.extra, nullptr, false);
  if (!extra.is_object()) {
    throw CheckpointError({.what = "writing a manifest: the extra values",
                           .expected = "one JSON object",
                           .got = concat("'", manifest.extra.substr(0, 100), "'")});
  }
  std::vector<CheckpointFile> sorted = manifest.files;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  Json files = Json::array();
  for (const CheckpointFile& file : sorted) {
    files.push_back(
        {{"path", file.path}, {"size_bytes", file.size_bytes}, {"xxh3_64", checksum_text(file.xxh3_64)}});
  }
  Json json = {
      {"format", kFormat},
      {"format_version", manifest.format_version},
      {"accelerate_version", manifest.accelerate_version.empty() ? kVersion : manifest.accelerate_version},
      {"time", manifest.time.empty() ? utc_time_text() : manifest.time},
      {"iteration", manifest.iteration},
      {"optimizer_steps", manifest.optimizer_steps},
      {"epoch", manifest.epoch},
      {"world_size", manifest.world_size},
      {"strategy", manifest.strategy},
      {"extra", std::move(extra)},
      {"files", std::move(files)}};
  json[kOwnChecksum] = checksum_text(Xxh3::of(text_of(json)));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

CheckpointManifest parse_manifest(const std::string& text, const std::string& path) {
  const Json json = parse_json(text, path);
  check_version(json, path);
  check_own_checksum(json, path);
  CheckpointManifest out{.format_version = number(json, "format_version", path),
                         .accelerate_version = string(json, "accelerate_version", path),
                         .time = string(json, "time", path),
                         .iteration = number(json, "iteration", path),
                         .optimizer_steps = number(json, "optimizer_steps", path),
                         .epoch = number(json, "epoch", path),
                         .world_size = number(json, "world_size", path),
                         .strategy = string(json, "strategy", path),
                         .extra = text_of(member(json, "extra", path)),
                         .files = {}};
  if (!json["extra"].is_object()) damaged(path, "'extra' should be an object");
  const Json& files = member(json, "files", path);
  if (!files.is_array()) damaged(path, "'files' should be a list");
  for (const Json& file : files) {
    if (!file.is_object()) damaged(path, concat("'files' holds ", text_of(file), ", which is no object"));
    out.files.push_back({.path = string(file, "path", path),
                         .size_bytes = static_cast<uint64_t>(number(file, "size_bytes", path)),
                         .xxh3_64 = checksum(file, "xxh3_64", path)});
  }
  const std::string problem = problem_with(out.files);
  if (!problem.empty()) damaged(path, problem);
  return out;
}

std::string read_manifest_text(FileSystem& files, const std::string& folder) {
  return read_whole_file(files, path_in(folder, CheckpointManifest::kFileName), kMostBytes);
}

CheckpointManifest read_manifest(FileSystem& files, const std::string& folder) {
  return parse_manifest(read_manifest_text(files, folder), path_in(folder, CheckpointManifest::kFileName));
}

}  // namespace accelerate
