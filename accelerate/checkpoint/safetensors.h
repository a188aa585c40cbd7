#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/file_system.h"
#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// Names that were not written because they share memory with a name that was: (left out, kept).
using SharedNames = std::vector<std::pair<std::string, std::string>>;

/// {"format": "pt"}, which Python's transformers asks for.
const std::map<std::string, std::string>& safetensors_metadata();

/// The format's name of a dtype ("F32").
/// @throws CheckpointError naming `tensor` for a dtype that the format does not have.
std::string safetensors_dtype(at::ScalarType dtype, const std::string& tensor);

/// The reverse.
/// @throws CheckpointError naming `tensor` for a dtype that torch does not have.
at::ScalarType torch_dtype(const std::string& safetensors_dtype, const std::string& tensor);

/// `tensors` without those that are the same memory as another (same start, same number of elements), which
/// stays under the first name in sorted order, as HF does.
TensorDict without_shared(const TensorDict& tensors, SharedNames* shared);

/// A safetensors file before it is written (the format: huggingface.co/docs/safetensors). Tensors stand as
/// Python's library orders them, wide dtypes first, then by name, so that the bytes are the same.
struct SafetensorsPlan {
  std::string header;               ///< all that stands before the data
  std::vector<at::Tensor> tensors;  ///< in the order of the file
  SharedNames shared;               ///< left out; they stand in the metadata too

  uint64_t total_bytes() const;
};
/// @throws CheckpointError for a dtype that the format does not have.
SafetensorsPlan plan_safetensors(const TensorDict& tensors,
                                 std::map<std::string, std::string> metadata = safetensors_metadata());

/// Writes the planned file. Tensors of any device and layout are written as contiguous little-endian data;
/// those that lie so on the CPU are not copied.
void write_safetensors(WritableFile& file, const SafetensorsPlan& plan);

/// Writes tensors as one safetensors file, atomically. Returns what was left out since it shares its memory.
/// @throws CheckpointError for a dtype that safetensors does not know, or when writing fails (with path and
/// reason).
SharedNames save_safetensors(FileSystem& files, const std::string& path, const TensorDict& tensors,
                             const std::map<std::string, std::string>& metadata = safetensors_metadata());

/// A safetensors file that is mapped into memory. The pages of a tensor are read when it is used.
class SafetensorsFile {
 public:
  /// @throws CheckpointError naming the path and what is wrong: not there, cut off, a damaged header.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return mapping_->path(); }
  const SafetensorsHeader& header() const { return header_; }
  /// A tensor of the header, on the CPU, in the mapped memory, which lives as long as the tensor does.
  /// Writing to it changes this process's copy only, never the file.
  at::Tensor tensor(const SafetensorsEntry& entry) const;
  /// Gives the memory of a tensor's pages back once it has been copied; it must not have been written to.
  void release(const SafetensorsEntry& entry) const;

 private:
  std::shared_ptr<FileMapping> mapping_;
  SafetensorsHeader header_;
};

/// Maps a safetensors file and returns its tensors, see SafetensorsFile.
/// @throws CheckpointError as SafetensorsFile.
TensorDict load_safetensors(const std::string& path);

}  // namespace accelerate
