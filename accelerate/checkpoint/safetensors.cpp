#include "accelerate/checkpoint/safetensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

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

// Tensors that are one and the same memory, seen in the same way, have equal keys.
std::vector<int64_t> memory_key(const at::Tensor& tensor) {
  std::vector<int64_t> out = {reinterpret_cast<int64_t>(tensor.storage().unsafeGetStorageImpl()),
                              tensor.storage_offset(), static_cast<int64_t>(tensor.scalar_type())};
  out.insert(out.end(), tensor.sizes().begin(), tensor.sizes().end());
  out.insert(out.end(), tensor.strides().begin(), tensor.strides().end());
  return out;
}

}  // namespace

const std::map<std::string, std::string>& safetensors_metadata() {
  static const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  return metadata;
}

std::string safetensors_dtype(at::ScalarType dtype, const std::string& tensor) {
  for (const DtypeName& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  throw CheckpointError({.what = concat("tensor '", tensor, "'"),
                         .expected = "a dtype that safetensors has",
                         .got = std::string(c10::toString(dtype)),
                         .hint = "Convert it first (complex numbers: torch::view_as_real)."});
}

at::ScalarType torch_dtype(const std::string& safetensors_dtype, const std::string& tensor) {
  for (const DtypeName& entry : kDtypes) {
    if (safetensors_dtype == entry.name) return entry.dtype;
  }
  throw CheckpointError(
      {.what = concat("tensor '", tensor, "' has the dtype ", safetensors_dtype, ", which torch does not")});
}

TensorDict without_shared(const TensorDict& tensors, SharedNames* shared) {
  TensorDict out;
  std::map<std::vector<int64_t>, std::string> written;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() > 0) {
      const auto [entry, is_new] = written.emplace(memory_key(tensor), name);
      if (!is_new) {
        if (shared != nullptr) shared->emplace_back(name, entry->second);
        continue;
      }
    }
    out.emplace(name, tensor);
  }
  return out;
}

uint64_t SafetensorsPlan::total_bytes() const {
  uint64_t out = header.size();
  for (const at::Tensor& tensor : tensors) out += tensor.nbytes();
  return out;
}

SafetensorsPlan plan_safetensors(const TensorDict& tensors, std::map<std::string, std::string> metadata) {
  SafetensorsPlan plan;
  std::vector<SafetensorsEntry> entries;
  const TensorDict kept = without_shared(tensors, &plan.shared);
  for (const auto& [name, tensor] : kept) {
    entries.push_back({.name = name,
                       .dtype = safetensors_dtype(tensor.scalar_type(), name),
                       .shape = tensor.sizes().vec()});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return safetensors_dtype_order(a.dtype) > safetensors_dtype_order(b.dtype);
  });
  uint64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    const at::Tensor& tensor = kept.at(entry.name);
    entry.begin = offset;
    entry.end = offset += static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    plan.tensors.push_back(tensor);
  }
  for (const auto& [left_out, name] : plan.shared) metadata.emplace(left_out, name);
  plan.header = write_safetensors_header(entries, metadata);
  return plan;
}

void write_safetensors(WritableFile& file, const SafetensorsPlan& plan) {
  file.write(std::as_bytes(std::span(plan.header.data(), plan.header.size())));
  for (const at::Tensor& tensor : plan.tensors) {
    if (tensor.numel() == 0) continue;
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    file.write({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
  }
}

SharedNames save_safetensors(FileSystem& files, const std::string& path, const TensorDict& tensors,
                             const std::map<std::string, std::string>& metadata) {
  SafetensorsPlan plan = plan_safetensors(tensors, metadata);
  write_file_atomically(files, path, [&](WritableFile& file) { write_safetensors(file, plan); });
  return std::move(plan.shared);
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : header_(read_safetensors_header(system_files(), path)) {
  try {
    mapping_ = std::make_shared<FileMapping>(path);
  } catch (const DataError& error) {
    throw CheckpointError(error.text());
  }
  if (mapping_->bytes().size() < header_.data_begin + header_.data_bytes())
    throw CheckpointError({.what = concat(path, " became shorter while it was read")});
}

at::Tensor SafetensorsFile::tensor(const SafetensorsEntry& entry) const {
  const auto options = at::TensorOptions(torch_dtype(entry.dtype, entry.name));
  if (entry.num_bytes() == 0) return at::empty(entry.shape, options);
  return at::from_blob(
      mapping_->bytes().data() + header_.data_begin + entry.begin, entry.shape,
      [mapping = mapping_](void*) {}, options);
}

void SafetensorsFile::release(const SafetensorsEntry& entry) const {
  mapping_->release(mapping_->bytes().subspan(header_.data_begin + entry.begin, entry.num_bytes()));
}

TensorDict load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  TensorDict out;
  for (const SafetensorsEntry& entry : file.header().tensors) out.emplace(entry.name, file.tensor(entry));
  return out;
}

}  // namespace accelerate
