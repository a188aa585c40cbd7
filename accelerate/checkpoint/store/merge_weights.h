#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/core/file_system.h"

namespace accelerate {

/// "5GB", "500MB", "1.5TB", "64KB" (powers of 1000, any case, blanks allowed) as huggingface_hub reads sizes;
/// a plain number is bytes.
/// @throws ConfigError for anything else and for less than one byte.
uint64_t parse_shard_size(const std::string& text);

/// Which tensors go into which file.
struct ShardPlan {
  std::vector<std::vector<size_t>> shards;  ///< positions in the list of tensors
  uint64_t total_bytes = 0;
};

/// Splits tensors as huggingface_hub's split_state_dict_into_shards_factory does: in their order, a new shard
/// where the next one does not fit; a tensor larger than the limit gets a shard of its own, which stands
/// before the one that was being filled.
/// @param max_shard_bytes nothing: one shard
ShardPlan plan_shards(const std::vector<uint64_t>& tensor_bytes, std::optional<uint64_t> max_shard_bytes);

struct MergeProgress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
};

struct MergeOptions {
  /// Nothing: one file, whatever its size.
  std::optional<uint64_t> max_shard_bytes = std::nullopt;
  /// Replaces weights that are at the output already; without it they are an error.
  bool overwrite = false;
  std::function<void(const MergeProgress&)> progress = {};
};

struct MergeResult {
  std::vector<std::string> files;  ///< paths written, the index last if there is one
  uint64_t tensors = 0;
  uint64_t bytes = 0;  ///< of tensors
  /// Names that are the same memory as another, and were left out: (left out, kept). They stand in the
  /// metadata as well, as huggingface_hub writes them.
  std::vector<std::pair<std::string, std::string>> tied;
  std::vector<std::string> notes;  ///< metadata on which the files disagree
};

/// Joins the safetensors files of a model, or shards them anew.
///
/// Input: a folder with `model.safetensors.index.json` and the files it names; or without an index all
/// `model*.safetensors` in it; or one .safetensors file. Names, dtypes, shapes and bytes are kept, and the
/// metadata of all files together. Index and files must agree in both directions.
///
/// Output: a folder, for `model.safetensors` in it, or the path of a file that ends in .safetensors. Where
/// the limit makes several shards of it: NAME-00001-of-0000N.safetensors and NAME.safetensors.index.json.
/// Within a file tensors stand as Python's safetensors orders them (wide dtypes first, then by name); one
/// file made of shards has the bytes that Python would write.
///
/// Memory: the headers and one buffer of 4 MiB. Every file is written beside its place, synced and renamed;
/// the index comes last, and one that is replaced goes first, so that no index ever names files of two
/// models.
/// @throws ConfigError for an output that is there already; CheckpointError for missing or doubled tensors
/// (by name), damaged files, and too little space (bytes needed and free) before anything is written.
MergeResult merge_weights(FileSystem& files, const std::string& input, const std::string& output,
                          const MergeOptions& options = {});

}  // namespace accelerate
