#include "accelerate/checkpoint/store/merge_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/store/weight_files.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr const char* kSuffix = ".safetensors";
constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr const char* kPartSuffix = ".merging";
constexpr size_t kDigits = 5;

struct Output {
  std::string folder;
  std::string stem;  // "model"

  std::string path(const std::string& name) const { return path_in(folder, name); }
  std::string index() const { return stem + kIndexSuffix; }
};

Output output_of(const std::string& text) {
  if (!text.ends_with(kSuffix)) return {text.empty() ? "." : text, "model"};
  const std::string name = text.substr(text.rfind('/') + 1);
  return {parent_directory(text), name.substr(0, name.size() - std::string(kSuffix).size())};
}

std::string shard_name(const std::string& stem, size_t shard, size_t count) {
  if (count == 1) return stem + kSuffix;
  char text[48];
  std::snprintf(text, sizeof text, "-%05zu-of-%05zu", shard + 1, count);
  return stem + text + kSuffix;
}

bool is_digits(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "-00001-of-00002": what stands between the stem and the suffix.
bool is_shard_part(std::string_view text) {
  return text.size() == 2 * kDigits + 5 && text.starts_with('-') && is_digits(text.substr(1, kDigits)) &&
         text.substr(1 + kDigits, 4) == "-of-" && is_digits(text.substr(kDigits + 5));
}

// Weights of that stem that are in the folder.
std::vector<std::string> weights_at(FileSystem& files, const Output& output) {
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

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error);
}

void check_output(const WeightFiles& model, const Output& output, const std::vector<std::string>& there,
                  bool overwrite) {
  for (const std::string& name : there) {
    for (const std::string& path : model.paths) {
      if (!same_file(path, output.path(name))) continue;
      throw ConfigError({.what = concat("the output would replace ", path, ", which is read"),
                         .hint = "Choose another folder, or another name that ends in .safetensors."});
    }
  }
  if (there.empty() || overwrite) return;
  throw ConfigError({.what = concat("weights are there already in ", output.folder, ": ", join(there, ", ")),
                     .hint = "Choose another output, or pass --overwrite."});
}

class Merger {
 public:
  Merger(FileSystem& files, const WeightFiles& model, const MergeOptions& options)
      : files_(files), model_(model), options_(options), buffer_(kBufferBytes) {}

  // Writes one shard to `path`, synced. `members` are positions in the model's weights.
  void write(const std::string& path, std::vector<size_t> members) {
    std::sort(members.begin(), members.end(), [this](size_t a, size_t b) {
      const SafetensorsEntry& x = model_.weights[a].entry;
      const SafetensorsEntry& y = model_.weights[b].entry;
      const int order = safetensors_dtype_order(x.dtype) - safetensors_dtype_order(y.dtype);
      return order != 0 ? order > 0 : x.name < y.name;
    });
    std::vector<SafetensorsEntry> entries;
    uint64_t offset = 0;
    for (const size_t member : members) {
      SafetensorsEntry entry = model_.weights[member].entry;
      const uint64_t num_bytes = entry.num_bytes();
      entry.begin = offset;
      entry.end = offset += num_bytes;
      entries.push_back(std::move(entry));
    }
    const std::string header = write_safetensors_header(entries, model_.metadata);
    const auto file = files_.create(path);
    file->write(std::as_bytes(std::span(header.data(), header.size())));
    for (const size_t member : members) copy(model_.weights[member], *file);
    file->sync();
    file->close();
  }

 private:
  void copy(const StoredWeight& weight, WritableFile& to) {
    if (!source_ || source_file_ != weight.file) {
      source_ = files_.open(model_.paths[weight.file]);
      source_file_ = weight.file;
    }
    source_->seek(weight.position_bytes);
    for (uint64_t left = weight.entry.num_bytes(); left > 0;) {
      const auto piece = std::span(buffer_).first(std::min<uint64_t>(left, buffer_.size()));
      if (source_->read(piece) != piece.size()) {
        throw CheckpointError(
            {.what = concat(model_.paths[weight.file], " became shorter while it was read")});
      }
      to.write(piece);
      left -= piece.size();
      progress_.done_bytes += piece.size();
      if (options_.progress) options_.progress(progress_);
    }
  }

 public:
  MergeProgress progress_;

 private:
  FileSystem& files_;
  const WeightFiles& model_;
  const MergeOptions& options_;
  std::vector<std::byte> buffer_;
  std::unique_ptr<ReadableFile> source_;
  size_t source_file_ = 0;
};

std::string index_text(const WeightFiles& model, const ShardPlan& plan, const std::string& stem) {
  std::map<std::string, std::string> map;
  for (size_t shard = 0; shard < plan.shards.size(); ++shard) {
    for (const size_t member : plan.shards[shard]) {
      map[model.weights[member].entry.name] = shard_name(stem, shard, plan.shards.size());
    }
  }
  nlohmann::json metadata = nlohmann::json::parse(model.index_metadata);
  metadata["total_size"] = plan.total_bytes;
  const nlohmann::json out = {{"metadata", metadata}, {"weight_map", map}};
  return out.dump(2, ' ', true) + "\n";
}

// Gives all files their names. Without an index at any moment in between: the old one first, the new one
// last.
void put_in_place(FileSystem& files, const Output& output, const std::vector<std::string>& names,
                  const std::string& index, const std::vector<std::string>& there) {
  const auto is_there = [&there](const std::string& name) {
    return std::find(there.begin(), there.end(), name) != there.end();
  };
  if (is_there(output.index())) {
    files.remove(output.path(output.index()));
    files.sync_directory(output.folder);
  }
  for (const std::string& name : names) files.rename(output.path(name + kPartSuffix), output.path(name));
  files.sync_directory(output.folder);
  if (!index.empty()) write_file_atomically(files, output.path(output.index()), index);
  bool removed = false;
  for (const std::string& name : there) {
    if (name == output.index() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    files.remove(output.path(name));
    removed = true;
  }
  if (removed) files.sync_directory(output.folder);
}

}  // namespace

uint64_t parse_shard_size(const std::string& text) {
  constexpr double kMost = 1e18;
  std::string number = trim(text);
  double factor = 1;
  if (number.size() >= 2) {
    const std::string unit = to_upper(number.substr(number.size() - 2));
    const std::pair<const char*, double> units[] = {{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
    for (const auto& [name, bytes] : units) {
      if (unit != name) continue;
      factor = bytes;
      number.resize(number.size() - 2);
    }
  }
  const auto value = parse_double(number);
  if (!value || !(*value * factor >= 1) || *value * factor > kMost) {
    throw ConfigError({.what = "the size of a shard",
                       .expected = "a number with KB, MB, GB or TB, such as 5GB or 500MB, or of bytes",
                       .got = concat("'", text, "'")});
  }
  return static_cast<uint64_t>(*value * factor);
}

ShardPlan plan_shards(const std::vector<uint64_t>& tensor_bytes, std::optional<uint64_t> max_shard_bytes) {
  ShardPlan out;
  std::vector<size_t> current;
  uint64_t current_bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    out.total_bytes += tensor_bytes[i];
    if (max_shard_bytes && tensor_bytes[i] > *max_shard_bytes) {
      out.shards.push_back({i});
      continue;
    }
    if (max_shard_bytes && current_bytes + tensor_bytes[i] > *max_shard_bytes) {
      out.shards.push_back(std::move(current));
      current = {};
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += tensor_bytes[i];
  }
  if (!current.empty() || out.shards.empty()) out.shards.push_back(std::move(current));
  return out;
}

MergeResult merge_weights(FileSystem& files, const std::string& input, const std::string& output_path,
                          const MergeOptions& options) {
  const WeightFiles model = read_weight_files(files, input);
  const Output output = output_of(output_path);
  const std::vector<std::string> there = weights_at(files, output);
  check_output(model, output, there, options.overwrite);
  std::vector<uint64_t> sizes;
  for (const StoredWeight& weight : model.weights) sizes.push_back(weight.entry.num_bytes());
  const ShardPlan plan = plan_shards(sizes, options.max_shard_bytes);
  require_free_bytes(files, output.folder, plan.total_bytes);

  std::vector<std::string> names;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    names.push_back(shard_name(output.stem, i, plan.shards.size()));
  }
  const std::string index = names.size() > 1 ? index_text(model, plan, output.stem) : "";
  files.create_directories(output.folder);
  try {
    Merger merger(files, model, options);
    merger.progress_.total_bytes = plan.total_bytes;
    for (size_t i = 0; i < names.size(); ++i) {
      merger.write(output.path(names[i] + kPartSuffix), plan.shards[i]);
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
  MergeResult out{.files = {},
                  .tensors = model.weights.size(),
                  .bytes = plan.total_bytes,
                  .tied = model.tied,
                  .notes = model.notes};
  for (const std::string& name : names) out.files.push_back(output.path(name));
  if (!index.empty()) out.files.push_back(output.path(output.index()));
  return out;
}

}  // namespace accelerate
