#include "launcher/safetensors_header.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit; for an index as well
constexpr int kMaxDepth = 4;                       // a tensor's shape is the deepest there is
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kIndexSuffix = ".index.json";

[[noreturn]] void fail(const std::string& path, const std::string& what, const std::string& hint = {}) {
  throw CheckpointError({.what = concat(shell_quote(path), ": ", what), .hint = hint});
}

uint64_t bits_of(const std::string& dtype) {
  static const std::map<std::string, uint64_t> kBits = {
      {"F64", 64}, {"F32", 32}, {"F16", 16}, {"BF16", 16}, {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"I64", 64}, {"I32", 32}, {"I16", 16}, {"I8", 8},    {"U64", 64},    {"U32", 32},
      {"U16", 16}, {"U8", 8},   {"BOOL", 8}, {"C64", 64},  {"F4", 4}};
  const auto found = kBits.find(dtype);
  return found == kBits.end() ? 0 : found->second;
}

uint64_t multiplied(uint64_t a, uint64_t b, const std::string& path) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) fail(path, "damaged: a tensor of more than 2^64 elements");
  return out;
}

uint64_t added(uint64_t a, uint64_t b, const std::string& path) {
  uint64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) fail(path, "damaged: more than 2^64 bytes");
  return out;
}

Json parse(const std::string& text, const std::string& path) {
  const auto not_too_deep = [&path](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) fail(path, "damaged: its JSON is nested too deeply");
    return true;
  };
  try {
    Json out = Json::parse(text, not_too_deep);
    if (!out.is_object()) fail(path, "damaged: its JSON is no object");
    return out;
  } catch (const Json::exception&) {
    fail(path, "damaged: it holds no valid JSON where the header should be");
  }
}

// The JSON in a file: behind its length in 8 bytes, or all of it.
std::string header_text(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail(path, errno_text(errno));
  if (!S_ISREG(info.st_mode)) fail(path, "it is no regular file");
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, errno_text(errno));
  unsigned char start[8] = {};
  if (file_bytes < 8 || !file.read(reinterpret_cast<char*>(start), 8)) {
    fail(path, concat("damaged: ", file_bytes, " bytes are no safetensors file"));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(start[i]) << (8 * i);
  if (start[0] == '{' && length > kMaxHeaderBytes) {
    if (file_bytes > kMaxHeaderBytes) fail(path, "it is larger than a header can be");
    file.seekg(0);
    length = file_bytes;
  } else if (length > kMaxHeaderBytes) {
    fail(path, "damaged: no safetensors file begins like this");
  } else if (length > file_bytes - 8) {
    fail(path, concat("cut off: the header has ", length, " bytes, and ", file_bytes - 8, " are there"));
  }
  std::string text(length, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(length))) fail(path, "it can't be read");
  return text;
}

StoredTensor tensor_of(const std::string& name, const Json& entry, const std::string& path) {
  const auto bad = [&](const char* what) { fail(path, concat("damaged: tensor '", name, "' ", what)); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    bad("lacks dtype, shape or data_offsets");
  }
  StoredTensor out{.name = name, .dtype = entry["dtype"].get<std::string>(), .numel = 1};
  for (const Json& size : entry["shape"]) {
    if (!size.is_number_unsigned()) bad("has a size that is no number");
    out.numel = multiplied(out.numel, size.get<uint64_t>(), path);
  }
  const Json& offsets = entry["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
    bad("has offsets that are no numbers");
  if (offsets[0].get<uint64_t>() > offsets[1].get<uint64_t>()) bad("ends before it begins");
  out.num_bytes = offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>();
  if (const uint64_t bits = bits_of(out.dtype);
      bits != 0 && multiplied(out.numel, bits, path) / 8 != out.num_bytes) {
    bad("has another number of bytes than its shape and dtype make");
  }
  return out;
}

void add(ModelSize& size, const std::string& path) {
  for (const StoredTensor& tensor : read_safetensors_header(path)) {
    ++size.tensors;
    size.stored_bytes = added(size.stored_bytes, tensor.num_bytes, path);
    if (!tensor.is_floating()) {
      size.buffer_bytes = added(size.buffer_bytes, tensor.num_bytes, path);
      continue;
    }
    size.parameters = added(size.parameters, tensor.numel, path);
    if (tensor.numel > size.largest_parameters) {
      size.largest_parameters = tensor.numel;
      size.largest_tensor = tensor.name;
    }
  }
}

// By what the index says of the whole, for when its files are elsewhere.
void add_totals(ModelSize& size, const Json& index, const std::string& stored_dtype,
                const std::string& path) {
  const Json metadata = index.value("metadata", Json::object());
  const auto total = [&metadata](const char* key) -> uint64_t {
    const bool there = metadata.is_object() && metadata.contains(key) && metadata[key].is_number();
    const double value = there ? metadata[key].get<double>() : 0;  // some write 1.4e10
    return value > 0 && value < 1e18 ? static_cast<uint64_t>(value) : 0;
  };
  size.tensors = index["weight_map"].size();
  size.stored_bytes = total("total_size");
  size.parameters = total("total_parameters");
  const uint64_t bits = bits_of(to_upper(stored_dtype));
  if (size.parameters == 0 && bits != 0) size.parameters = size.stored_bytes * 8 / bits;
  if (size.parameters == 0) {
    fail(path, "the files that it names are not there, and it does not say the number of parameters",
         size.stored_bytes == 0
             ? "Pass --parameters N instead."
             : "Pass --stored_dtype BF16 (or what they are stored as), or --parameters N.");
  }
}

void add_index(ModelSize& size, const std::string& path, const std::string& stored_dtype) {
  const Json index = parse(header_text(path), path);
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) fail(path, "it has no weight_map");
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos) {
      fail(path, concat("the file of tensor '", tensor, "' is no name beside the index"));
    }
    files.insert(name);
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::vector<std::string> missing;
  for (const std::string& name : files) {
    if (!std::filesystem::exists(folder / name)) missing.push_back(name);
  }
  if (missing.empty() && !files.empty()) {
    for (const std::string& name : files) add(size, (folder / name).string());
  } else if (missing.size() == files.size()) {
    add_totals(size, index, stored_dtype, path);
  } else {
    fail(path, concat("it names files that are not there: ", join(missing, ", ")));
  }
}

void add_folder(ModelSize& size, const std::string& folder, const std::string& stored_dtype) {
  const std::filesystem::path path = folder;
  if (std::filesystem::exists(path / "model.safetensors"))
    return add(size, (path / "model.safetensors").string());
  if (std::filesystem::exists(path / kIndexName)) {
    return add_index(size, (path / kIndexName).string(), stored_dtype);
  }
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  if (error) fail(folder, error.message());
  if (files.empty()) fail(folder, "no .safetensors file is in this folder");
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) add(size, file);
}

}  // namespace

std::vector<StoredTensor> read_safetensors_header(const std::string& path) {
  const Json header = parse(header_text(path), path);
  std::vector<StoredTensor> out;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") out.push_back(tensor_of(name, entry, path));
  }
  return out;
}

ModelSize read_model_size(const std::string& path, const std::string& stored_dtype) {
  ModelSize size{.name = path};
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    fail(path, "there is no such file or folder",
         "Nothing is downloaded: name a .safetensors file, its index or folder, or pass --parameters 7B.");
  }
  if (std::filesystem::is_directory(status)) {
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
