#pragma once

#include <cstdint>
#include <string>

namespace accelerate::cli {

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
