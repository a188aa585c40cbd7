#include "accelerate/data/tensor_segment.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <nlohmann/json.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr size_t kAlignmentBytes = 64;  // a cache line, and what vectorised kernels like best

at::Tensor slot_tensor(const TensorSlot& slot, std::byte* base, std::function<void(void*)> release) {
  return at::from_blob(base + slot.offset_bytes, slot.sizes, std::move(release),
                       at::TensorOptions(slot.dtype));
}

}  // namespace

SegmentLayout plan_layout(const TensorDict& tensors) {
  SegmentLayout layout;
  if (tensors.empty()) throw DataError({.what = "the loader returned no tensors"});
  std::optional<int64_t> rows;
  for (const auto& [name, tensor] : tensors) {
    const auto problem = [&, &name = name](const std::string& got, const std::string& hint) {
      return DataError(
          {.what = concat("tensor '", name, "' of the data set"),
           .expected = rows ? concat("a dense tensor of ", *rows, " rows") : "a dense tensor with rows",
           .got = got,
           .hint = hint});
    };
    if (!tensor.defined()) throw problem("an undefined tensor", "The loader left it empty.");
    if (tensor.layout() != at::kStrided || tensor.is_quantized())
      throw problem("another layout", "Use to_dense().");
    if (tensor.dim() == 0) throw problem("a scalar", "The first dimension counts the samples.");
    if (rows && tensor.size(0) != *rows) {
      throw problem(concat(tensor.size(0), " rows"), "All tensors need one row a sample.");
    }
    rows = tensor.size(0);
    TensorSlot slot{.name = name, .dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
    slot.offset_bytes = layout.size_bytes;
    slot.size_bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
    layout.size_bytes += (slot.size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    layout.slots.push_back(std::move(slot));
  }
  return layout;
}

std::string encode_layout(const SegmentLayout& layout, const std::string& path) {
  nlohmann::json slots = nlohmann::json::array();
  for (const TensorSlot& slot : layout.slots) {
    slots.push_back({{"name", slot.name},
                     {"dtype", static_cast<int>(slot.dtype)},
                     {"sizes", slot.sizes},
                     {"offset_bytes", slot.offset_bytes},
                     {"size_bytes", slot.size_bytes}});
  }
  return nlohmann::json({{"path", path}, {"size_bytes", layout.size_bytes}, {"slots", slots}}).dump();
}

SegmentLayout decode_layout(const std::string& text, std::string* path) {
  const nlohmann::json json = nlohmann::json::parse(text);
  SegmentLayout layout;
  *path = json.at("path");
  layout.size_bytes = json.at("size_bytes");
  for (const auto& entry : json.at("slots")) {
    layout.slots.push_back({.name = entry.at("name"),
                            .dtype = static_cast<at::ScalarType>(entry.at("dtype").get<int>()),
                            .sizes = entry.at("sizes"),
                            .offset_bytes = entry.at("offset_bytes"),
                            .size_bytes = entry.at("size_bytes")});
  }
  return layout;
}

void fill_segment(const TensorDict& tensors, const SegmentLayout& layout, SharedMemoryMapping& mapping) {
  for (const TensorSlot& slot : layout.slots) {
    if (slot.size_bytes == 0) continue;
    slot_tensor(slot, mapping.data(), [](void*) {}).copy_(tensors.at(slot.name).detach());
  }
}

TensorDict view_segment(const SegmentLayout& layout, std::shared_ptr<SharedMemoryMapping> mapping) {
  TensorDict out;
  for (const TensorSlot& slot : layout.slots) {
    out[slot.name] = slot.size_bytes == 0 ? at::empty(slot.sizes, at::TensorOptions(slot.dtype))
                                          : slot_tensor(slot, mapping->data(), [mapping](void*) {});
  }
  return out;
}

}  // namespace accelerate::detail
