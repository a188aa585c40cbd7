#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/core/file_system.h"

namespace accelerate {

/// One tensor of a model that lies in several files.
struct StoredWeight {
  SafetensorsEntry entry;
  size_t file = 0;              ///< position in WeightFiles::paths
  uint64_t position_bytes = 0;  ///< of its first byte in the file
};

/// A model as it lies on disk: the headers of all its files, checked against each other.
struct WeightFiles {
  std::string index;                  ///< path of the index; "" without one
  std::string index_metadata = "{}";  ///< its "metadata", a JSON object as text
  std::vector<std::string> paths;
  std::vector<StoredWeight> weights;  ///< by name
  std::vector<std::pair<std::string, std::string>>
      tied;                                     ///< (name that is not in `weights`, the one that is)
  std::map<std::string, std::string> metadata;  ///< of all files together; the first one's wins
  std::vector<std::string> notes;               ///< metadata on which they disagree
};

/// What an index (NAME.safetensors.index.json) says.
struct WeightIndex {
  std::map<std::string, std::string> files;  ///< of each tensor, the name of its file beside the index
  std::string metadata = "{}";               ///< its "metadata", a JSON object as text

  std::vector<std::string> file_names() const;  ///< each once, sorted
};

/// @throws CheckpointError where it can't be read, names no tensor, or names a file that is not beside it.
WeightIndex read_weight_index(FileSystem& files, const std::string& path);

/// Reads what `input` (a folder, an index or one file) holds; see merge_weights().
/// @throws CheckpointError naming tensors that the index and the files do not agree on.
WeightFiles read_weight_files(FileSystem& files, const std::string& input);

}  // namespace accelerate
