#pragma once

#include <map>
#include <string>
#include <vector>

#include "accelerate/core/file_system.h"
#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// Names that were not written because they share memory with a name that was: (left out, kept).
using SharedNames = std::vector<std::pair<std::string, std::string>>;

/// Writes tensors as one safetensors file (the format of huggingface.co/docs/safetensors), atomically.
/// Tensors of any device are written as contiguous little-endian data. Tensors that are the same memory are
/// written once, under the first name in sorted order, as HF does; the others are returned. `metadata`
/// defaults to {"format": "pt"}, which Python's transformers asks for.
/// @throws CheckpointError for a dtype that safetensors does not know, or when writing fails (with path and
/// reason).
SharedNames save_safetensors(FileSystem& files, const std::string& path, const TensorDict& tensors,
                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// Maps a safetensors file and returns its tensors on the CPU. The pages are read when they are used; writing
/// to a tensor changes this process's copy only, never the file.
/// @throws CheckpointError naming the path and what is wrong: not there, cut off, a damaged header.
TensorDict load_safetensors(const std::string& path);

}  // namespace accelerate
