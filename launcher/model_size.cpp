#include "launcher/model_size.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/checkpoint/store/weight_files.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kIndexSuffix = ".index.json";

[[noreturn]] void fail(const std::string& path, const std::string& what, const std::string& hint = {}) {
  throw CheckpointError({.what = concat(path, ": ", what), .hint = hint});
}

uint64_t added(uint64_t a, uint64_t b, const std::string& path) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) fail(path, "damaged: more than 2^64 bytes");
  return out;
}

void add(ModelSize& size, const std::string& path) {
  for (const SafetensorsEntry& tensor : read_safetensors_header_alone(system_files(), path).tensors) {
    ++size.tensors;
    size.stored_bytes = added(size.stored_bytes, tensor.num_bytes(), path);
    if (!is_floating_safetensors_dtype(tensor.dtype)) {
      size.buffer_bytes = added(size.buffer_bytes, tensor.num_bytes(), path);
      continue;
    }
    size.parameters = added(size.parameters, tensor.numel(), path);
    if (tensor.numel() > size.largest_parameters) {
      size.largest_parameters = tensor.numel();
      size.largest_tensor = tensor.name;
    }
  }
}

// By what the index says of the whole, for when its files are elsewhere.
void add_totals(ModelSize& size, const WeightIndex& index, const std::string& stored_dtype,
                const std::string& path) {
  const nlohmann::json metadata = nlohmann::json::parse(index.metadata);
  const auto total = [&metadata](const char* key) -> uint64_t {
    const bool there = metadata.contains(key) && metadata[key].is_number();
    const double value = there ? metadata[key].get<double>() : 0;  // some write 1.4e10
    return value > 0 && value < 1e18 ? static_cast<uint64_t>(value) : 0;
  };
  size.tensors = index.files.size();
  size.stored_bytes = total("total_size");
  size.parameters = total("total_parameters");
  const auto bits = safetensors_dtype_bits(to_upper(stored_dtype));
  if (size.parameters == 0 && bits) size.parameters = size.stored_bytes * 8 / *bits;
  if (size.parameters == 0) {
    fail(path, "the files that it names are not there, and it does not say the number of parameters",
         size.stored_bytes == 0
             ? "Pass --parameters N instead."
             : "Pass --stored_dtype BF16 (or what they are stored as), or --parameters N.");
  }
}

void add_index(ModelSize& size, const std::string& path, const std::string& stored_dtype) {
  const WeightIndex index = read_weight_index(system_files(), path);
  const std::string folder = parent_directory(path);
  std::vector<std::string> there;
  std::vector<std::string> missing;
  for (const std::string& name : index.file_names()) {
    (system_files().exists(path_in(folder, name)) ? there : missing).push_back(name);
  }
  if (there.empty()) return add_totals(size, index, stored_dtype, path);
  if (!missing.empty()) fail(path, concat("it names files that are not there: ", join(missing, ", ")));
  for (const std::string& name : there) add(size, path_in(folder, name));
}

void add_folder(ModelSize& size, const std::string& folder, const std::string& stored_dtype) {
  const std::vector<std::string> names = system_files().list(folder);
  const auto holds = [&names](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (holds("model.safetensors")) return add(size, path_in(folder, "model.safetensors"));
  if (holds(kIndexName)) return add_index(size, path_in(folder, kIndexName), stored_dtype);
  bool is_empty = true;
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    is_empty = false;
    add(size, path_in(folder, name));
  }
  if (is_empty) fail(folder, "no .safetensors file is in this folder");
}

}  // namespace

ModelSize read_model_size(const std::string& path, const std::string& stored_dtype) {
  ModelSize size{.name = path};
  const std::optional<FileInfo> info = system_files().info(path);
  if (!info) {
    fail(path, "there is no such file or folder",
         "Nothing is downloaded: name a .safetensors file, its index or folder, or pass --parameters 7B.");
  }
  if (info->kind == FileKind::kDirectory) {
    add_folder(size, path, stored_dtype);
  } else if (path.ends_with(kIndexSuffix)) {
    add_index(size, path, stored_dtype);
  } else {
    add(size, path);
  }
  if (size.parameters == 0) fail(path, "it holds no floating-point tensor");
  return size;
}

}  // namespace accelerate::cli
