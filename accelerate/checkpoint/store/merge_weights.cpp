#include "accelerate/checkpoint/store/merge_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "accelerate/checkpoint/store/weight_files.h"
#include "accelerate/checkpoint/store/weight_output.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

WeightOutput output_of(const std::string& text) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (!text.ends_with(kSuffix)) return {.folder = text.empty() ? "." : text};
  const std::string name = text.substr(text.rfind('/') + 1);
  return {.folder = parent_directory(text), .stem = name.substr(0, name.size() - kSuffix.size())};
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error);
}

void check_output(const WeightFiles& model, const WeightOutput& output, const std::vector<std::string>& there,
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

  // Writes one shard. `members` are positions in the model's weights.
  void write(WritableFile& file, std::vector<size_t> members) {
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
    file.write(std::as_bytes(std::span(header.data(), header.size())));
    for (const size_t member : members) copy(model_.weights[member], file);
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
  const WeightOutput output = output_of(output_path);
  const std::vector<std::string> there = weights_at(files, output);
  check_output(model, output, there, options.overwrite);
  std::vector<uint64_t> sizes;
  for (const StoredWeight& weight : model.weights) sizes.push_back(weight.entry.num_bytes());
  const ShardPlan plan = plan_shards(sizes, options.max_shard_bytes);
  require_free_bytes(files, output.folder, plan.total_bytes);

  std::vector<std::string> names;
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    names.push_back(weight_shard_name(output.stem, i, plan.shards.size()));
    for (const size_t member : plan.shards[i]) map[model.weights[member].entry.name] = names.back();
  }
  const std::string index =
      names.size() > 1 ? weight_index_text(map, plan.total_bytes, model.index_metadata) : "";
  Merger merger(files, model, options);
  merger.progress_.total_bytes = plan.total_bytes;
  write_weight_set(
      files, output, names, [&](size_t shard, WritableFile& file) { merger.write(file, plan.shards[shard]); },
      index);
  MergeResult out{.files = {},
                  .tensors = model.weights.size(),
                  .bytes = plan.total_bytes,
                  .tied = model.tied,
                  .notes = model.notes};
  for (const std::string& name : names) out.files.push_back(output.path(name));
  if (!index.empty()) out.files.push_back(output.path(output.index_name()));
  return out;
}

}  // namespace accelerate
