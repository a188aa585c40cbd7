#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::cli {

/// What the header of a safetensors file says of one tensor.
struct StoredTensor {
  std::string name;
  std::string dtype;       ///< as in the file: "F32", "BF16", "I64", ...
  uint64_t numel = 0;      ///< elements
  uint64_t num_bytes = 0;  ///< bytes of data

  /// Floating-point tensors are what training changes.
  bool is_floating() const { return dtype.starts_with("F") || dtype.starts_with("BF"); }
};

/// The header of a safetensors file (huggingface.co/docs/safetensors), or of one cut off behind its header,
/// or the header's JSON by itself. The data is neither needed nor read.
/// @throws CheckpointError naming the file and what is wrong with it.
std::vector<StoredTensor> read_safetensors_header(const std::string& path);

/// What is known of a model's size.
struct ModelSize {
  std::string name;                 ///< for titles
  uint64_t parameters = 0;          ///< floating-point elements
  uint64_t buffer_bytes = 0;        ///< all other tensors
  uint64_t stored_bytes = 0;        ///< of the tensors in the file; 0 where there is no file
  uint64_t tensors = 0;             ///< 0: unknown
  std::string largest_tensor = {};  ///< empty: unknown
  uint64_t largest_parameters = 0;  ///< elements of the largest tensor
};

/// The size of the model in a safetensors file, an index (model.safetensors.index.json) or a folder with
/// either. Where an index lies without its files, it has to say the number of parameters itself, or
/// `stored_dtype` ("F32", "bf16", ...; may be empty) tells how wide they are.
/// @throws CheckpointError naming the file and what is wrong with it.
ModelSize read_model_size(const std::string& path, const std::string& stored_dtype);

}  // namespace accelerate::cli
