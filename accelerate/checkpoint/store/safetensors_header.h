#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// One tensor in a safetensors file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;           ///< as in the file: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;  ///< elements along each dimension; empty: a scalar
  uint64_t begin = 0;          ///< first byte, counted from the start of the data
  uint64_t end = 0;            ///< behind the last one

  uint64_t num_bytes() const { return end - begin; }
  uint64_t numel() const;  ///< elements
};

/// What a safetensors file (huggingface.co/docs/safetensors) says ahead of its data.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  ///< `__metadata__`, usually {"format": "pt"}
  std::vector<SafetensorsEntry> tensors;        ///< in the order of the header
  uint64_t data_begin = 0;                      ///< where in the file the data starts

  uint64_t data_bytes() const;  ///< up to the end of the last tensor
};

/// Bits of an element of a dtype of the format; nothing for a name that it does not have.
std::optional<uint64_t> safetensors_dtype_bits(std::string_view dtype);

/// Whether values of a dtype are what training changes ("F32", "BF16", "F8_E4M3", ...).
bool is_floating_safetensors_dtype(std::string_view dtype);

/// Where a dtype stands in the order of the format's own library (0 for BOOL, ..., wider ones later), which
/// writes wide dtypes first so that every tensor is aligned. Unknown ones come last.
int safetensors_dtype_order(std::string_view dtype);

/// Reads the header of a file and checks all that can be checked without the data: the header's length, its
/// JSON, names that come twice, dtypes, shapes, and that each tensor's bytes fit its shape and lie in the
/// file. Two tensors may be the same bytes (tied), but not overlap otherwise.
/// @throws CheckpointError naming the file and what is wrong with it.
SafetensorsHeader read_safetensors_header(FileSystem& files, const std::string& path);

/// The same without the data: of a whole file, of one that was cut off behind its header (the first piece of
/// a download), or of a file that holds the header's JSON and nothing else. `data_begin` is 0 for the last.
SafetensorsHeader read_safetensors_header_alone(FileSystem& files, const std::string& path);

/// The first part of a file: the length of the header, the header, and blanks so that the data starts at a
/// multiple of 8. Entries are written in their order and with their offsets as they are.
std::string write_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                     const std::map<std::string, std::string>& metadata);

}  // namespace accelerate
