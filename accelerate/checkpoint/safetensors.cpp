#include "accelerate/checkpoint/safetensors.h"

#include <ATen/Functions.h>

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr std::array<DtypeName, 15> kDtypes = {{{at::kDouble, "F64"},
                                                {at::kFloat, "F32"},
                                                {at::kHalf, "F16"},
                                                {at::kBFloat16, "BF16"},
                                                {at::kLong, "I64"},
                                                {at::kInt, "I32"},
                                                {at::kShort, "I16"},
                                                {at::kChar, "I8"},
                                                {at::kByte, "U8"},
                                                {at::kBool, "BOOL"},
                                                {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                {at::kFloat8_e5m2, "F8_E5M2"},
                                                {at::kUInt16, "U16"},
                                                {at::kUInt32, "U32"},
                                                {at::kUInt64, "U64"}}};

const char* dtype_name(const std::string& tensor, at::ScalarType dtype, const std::string& path) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  throw CheckpointError({.what = concat(path, ": tensor '", tensor, "'"),
                         .expected = "a dtype that safetensors has",
                         .got = std::string(c10::toString(dtype)),
                         .hint = "Convert it first (complex numbers: torch::view_as_real)."});
}

// Tensors that are one and the same memory have equal keys.
std::array<int64_t, 3> memory_key(const at::Tensor& tensor) {
  return {reinterpret_cast<int64_t>(tensor.storage().unsafeGetStorageImpl()), tensor.storage_offset(),
          tensor.numel()};
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw CheckpointError({.what = concat(path, " is no complete safetensors file: ", what),
                         .hint = "It may have been cut off while it was copied; take another copy."});
}

std::shared_ptr<FileMapping> map_file(const std::string& path) {
  std::shared_ptr<FileMapping> mapping;
  try {
    mapping = std::make_shared<FileMapping>(path);
  } catch (const DataError& error) {
    throw CheckpointError(error.text());
  }
  if (mapping->bytes().size() < 8) damaged(path, concat("only ", mapping->bytes().size(), " bytes"));
  return mapping;
}

at::Tensor read_entry(const std::string& path, const std::string& name, const Json& entry,
                      const std::shared_ptr<FileMapping>& mapping, size_t data_begin) {
  const std::string dtype = entry.at("dtype");
  const auto sizes = entry.at("shape").get<std::vector<int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::array<uint64_t, 2>>();
  for (const DtypeName& known : kDtypes) {
    if (dtype != known.name) continue;
    uint64_t bytes = c10::elementSize(known.dtype);
    for (const int64_t size : sizes) {
      if (size < 0 ||
          (size > 0 && bytes > std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(size))) {
        damaged(path, concat("the shape of '", name, "' is not possible"));
      }
      bytes *= static_cast<uint64_t>(size);
    }
    if (offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes ||
        offsets[1] > mapping->bytes().size() - data_begin) {
      damaged(path, concat("the data of '", name, "' does not fit its shape or lies past the end"));
    }
    const auto options = at::TensorOptions(known.dtype);
    if (bytes == 0) return at::empty(sizes, options);
    return at::from_blob(
        mapping->bytes().data() + data_begin + offsets[0], sizes, [mapping](void*) {}, options);
  }
  damaged(path, concat("tensor '", name, "' has the unknown dtype ", dtype));
}

}  // namespace

SharedNames save_safetensors(FileSystem& files, const std::string& path, const TensorDict& tensors,
                             const std::map<std::string, std::string>& metadata) {
  Json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  SharedNames shared;
  std::map<std::array<int64_t, 3>, std::string> written;
  std::vector<at::Tensor> data;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const char* dtype = dtype_name(name, tensor.scalar_type(), path);
    if (tensor.numel() > 0) {
      const auto [entry, is_new] = written.emplace(memory_key(tensor), name);
      if (!is_new) {
        shared.emplace_back(name, entry->second);
        continue;
      }
    }
    const uint64_t end = offset + static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    header[name] = {{"dtype", dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
    data.push_back(tensor);
  }
  std::string text = header.is_null() ? "{}" : header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // tensors begin aligned
  write_file_atomically(files, path, [&](WritableFile& file) {
    std::array<std::byte, 8> length{};
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>((text.size() >> (8 * i)) & 0xFF);
    file.write(length);
    file.write(std::as_bytes(std::span(text.data(), text.size())));
    for (const at::Tensor& tensor : data) {
      const at::Tensor plain = tensor.detach().cpu().contiguous();
      file.write({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
    }
  });
  return shared;
}

TensorDict load_safetensors(const std::string& path) {
  const std::shared_ptr<FileMapping> mapping = map_file(path);
  const auto* bytes = reinterpret_cast<const unsigned char*>(mapping->bytes().data());
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > kMaxHeaderBytes || header_bytes > mapping->bytes().size() - 8) {
    damaged(path, concat("a header of ", header_bytes, " bytes in a file of ", mapping->bytes().size()));
  }
  TensorDict out;
  try {
    const Json header = Json::parse(bytes + 8, bytes + 8 + header_bytes);
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") out[name] = read_entry(path, name, entry, mapping, 8 + header_bytes);
    }
  } catch (const nlohmann::json::exception& error) {
    damaged(path, concat("the header can't be read (", error.what(), ")"));
  }
  return out;
}

}  // namespace accelerate
