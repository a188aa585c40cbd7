#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// Where a model's weights go: STEM.safetensors in a folder, or STEM-00001-of-0000N.safetensors and
/// STEM.safetensors.index.json.
struct WeightOutput {
  std::string folder;
  std::string stem = "model";

  std::string path(const std::string& name) const { return path_in(folder, name); }
  std::string index_name() const;
};

/// Name of one of `count` files, numbered from 0: the names that HF's libraries give.
std::string weight_shard_name(const std::string& stem, size_t shard, size_t count);

/// The index of a sharded model: which file holds each tensor.
/// @param metadata further members of its "metadata", a JSON object as text
std::string weight_index_text(const std::map<std::string, std::string>& weight_map, uint64_t total_bytes,
                              const std::string& metadata = "{}");

/// Names of all files of that stem that are in the folder.
/// @throws ConfigError where the folder is a file.
std::vector<std::string> weights_at(FileSystem& files, const WeightOutput& output);

/// Writes the files of a model in the place of those that are there. Each is written beside its place, synced
/// and renamed; an index that is replaced goes first and the new one comes last, so that no index ever names
/// files of two models. Files of an earlier model that have no successor are removed at the end.
/// @param write fills the file of names[shard]
/// @param index text of the index; empty: none
/// @throws what `write` throws and as FileSystem does; what has no name yet is removed.
void write_weight_set(FileSystem& files, const WeightOutput& output, const std::vector<std::string>& names,
                      const std::function<void(size_t shard, WritableFile& file)>& write,
                      const std::string& index);

}  // namespace accelerate
