#include "accelerate/checkpoint/store/weight_output.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr const char* kSuffix = ".safetensors";
constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr const char* kPartSuffix = ".part";
constexpr size_t kDigits = 5;

bool is_digits(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "-00001-of-00002": what stands between the stem and the suffix.
bool is_shard_part(std::string_view text) {
  return text.size() == 2 * kDigits + 5 && text.starts_with('-') && is_digits(text.substr(1, kDigits)) &&
         text.substr(1 + kDigits, 4) == "-of-" && is_digits(text.substr(kDigits + 5));
}

// Gives all files their names. Without an index at any moment in between.
void put_in_place(FileSystem& files, const WeightOutput& output, const std::vector<std::string>& names,
                  const std::string& index, const std::vector<std::string>& there) {
  const auto is_there = [&there](const std::string& name) {
    return std::find(there.begin(), there.end(), name) != there.end();
  };
  if (is_there(output.index_name())) {
    files.remove(output.path(output.index_name()));
    files.sync_directory(output.folder);
  }
  for (const std::string& name : names) files.rename(output.path(name + kPartSuffix), output.path(name));
  files.sync_directory(output.folder);
  if (!index.empty()) write_file_atomically(files, output.path(output.index_name()), index);
  bool removed = false;
  for (const std::string& name : there) {
    if (name == output.index_name() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    files.remove(output.path(name));
    removed = true;
  }
  if (removed) files.sync_directory(output.folder);
}

}  // namespace

std::string WeightOutput::index_name() const {
  return stem + kIndexSuffix;
}

std::string weight_shard_name(const std::string& stem, size_t shard, size_t count) {
  if (count == 1) return stem + kSuffix;
  char text[48];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu", shard + 1, count);
  return stem + text + kSuffix;
}

std::string weight_index_text(const std::map<std::string, std::string>& weight_map, uint64_t total_bytes,
                              const std::string& metadata) {
  nlohmann::json members = nlohmann::json::parse(metadata);
  members["total_size"] = total_bytes;
  const nlohmann::json out = {{"metadata", members}, {"weight_map", weight_map}};
  return out.dump(2, ' ', true) + "\n";
}

std::vector<std::string> weights_at(FileSystem& files, const WeightOutput& output) {
  std::vector<std::string> out;
  const std::optional<FileInfo> info = files.info(output.folder);
  if (!info) return out;
  if (info->kind != FileKind::kDirectory) {
    throw ConfigError({.what = concat("the output ", output.folder),
                       .expected = "a folder, or a file that ends in .safetensors",
                       .got = "another file"});
  }
  for (const std::string& name : files.list(output.folder)) {
    if (!name.starts_with(output.stem)) continue;
    const std::string rest = name.substr(output.stem.size());
    const std::string_view part = std::string_view(rest).substr(
        0, rest.size() - std::min(rest.size(), std::string_view(kSuffix).size()));
    if (rest == kIndexSuffix || rest == kSuffix || (rest.ends_with(kSuffix) && is_shard_part(part))) {
      out.push_back(name);
    }
  }
  return out;
}

void write_weight_set(FileSystem& files, const WeightOutput& output, const std::vector<std::string>& names,
                      const std::function<void(size_t shard, WritableFile& file)>& write,
                      const std::string& index) {
  const std::vector<std::string> there = weights_at(files, output);
  files.create_directories(output.folder);
  try {
    for (size_t shard = 0; shard < names.size(); ++shard) {
      const auto file = files.create(output.path(names[shard] + kPartSuffix));
      write(shard, *file);
      file->sync();
      file->close();
    }
    put_in_place(files, output, names, index, there);
  } catch (...) {
    for (const std::string& name : names) {
      try {
        files.remove(output.path(name + kPartSuffix));
      } catch (const std::exception&) {  // the first problem is the one to report
      }
    }
    throw;
  }
}

}  // namespace accelerate
