#include "accelerate/data/tensor_segment.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <bit>
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

TensorSlot add_slot(SegmentLayout& layout, const at::Tensor& tensor) {
  TensorSlot slot{.dtype = tensor.scalar_type(), .sizes = tensor.sizes().vec()};
  slot.offset_bytes = layout.size_bytes;
  slot.size_bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  layout.size_bytes += (slot.size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  return slot;
}

void check_tensor(const at::Tensor& tensor, const std::string& name, std::optional<int64_t> rows) {
  const auto problem = [&](const std::string& got, const std::string& hint) {
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
}

// The tensors that a column consists of.
std::vector<at::Tensor> parts_of(const Column& column) {
  if (const auto* ragged = std::get_if<Ragged>(&column)) return {ragged->values, ragged->offsets};
  return {std::get<at::Tensor>(column)};
}

}  // namespace

SegmentLayout plan_layout(const ColumnDict& columns) {
  SegmentLayout layout;
  if (columns.empty()) throw DataError({.what = "the loader returned no tensors"});
  std::optional<int64_t> rows;
  for (const auto& [name, column] : columns) {
    const auto* ragged = std::get_if<Ragged>(&column);
    if (ragged != nullptr) {
      ragged->check(name);
      if (columns.count(name + "_lengths") > 0) {
        throw DataError({.what = concat("column '", name, "_lengths' of the data set"),
                         .got = concat("a name that the lengths of ragged '", name, "' take in batches"),
                         .hint = "Rename it."});
      }
    } else {
      check_tensor(std::get<at::Tensor>(column), name, rows);
    }
    if (rows && column_size(column) != *rows) {
      throw DataError({.what = concat("tensor '", name, "' of the data set"),
                       .expected = concat(ragged == nullptr ? "a dense tensor of " : "a ragged column of ",
                                          *rows, " rows"),
                       .got = concat(column_size(column), " rows"),
                       .hint = "All tensors need one row a sample."});
    }
    rows = column_size(column);
    ColumnSlot slot{.name = name, .ragged = ragged != nullptr, .padding = {}, .parts = {}};
    if (ragged != nullptr) slot.padding = ragged->padding;
    for (const at::Tensor& part : parts_of(column)) slot.parts.push_back(add_slot(layout, part));
    layout.columns.push_back(std::move(slot));
  }
  return layout;
}

std::string encode_layout(const SegmentLayout& layout, const std::string& path) {
  nlohmann::json columns = nlohmann::json::array();
  for (const ColumnSlot& column : layout.columns) {
    nlohmann::json parts = nlohmann::json::array();
    for (const TensorSlot& slot : column.parts) {
      parts.push_back({{"dtype", static_cast<int>(slot.dtype)},
                       {"sizes", slot.sizes},
                       {"offset_bytes", slot.offset_bytes},
                       {"size_bytes", slot.size_bytes}});
    }
    columns.push_back({{"name", column.name},
                       {"ragged", column.ragged},
                       {"padding_bits", std::bit_cast<int64_t>(column.padding.value)},  // JSON has no NaN
                       {"multiple_of", column.padding.multiple_of},
                       {"parts", parts}});
  }
  return nlohmann::json({{"path", path}, {"size_bytes", layout.size_bytes}, {"columns", columns}}).dump();
}

SegmentLayout decode_layout(const std::string& text, std::string* path) {
  const nlohmann::json json = nlohmann::json::parse(text);
  SegmentLayout layout;
  *path = json.at("path");
  layout.size_bytes = json.at("size_bytes");
  for (const auto& entry : json.at("columns")) {
    ColumnSlot column{.name = entry.at("name"), .ragged = entry.at("ragged"), .padding = {}, .parts = {}};
    column.padding = {.value = std::bit_cast<double>(entry.at("padding_bits").get<int64_t>()),
                      .multiple_of = entry.at("multiple_of")};
    for (const auto& part : entry.at("parts")) {
      column.parts.push_back({.dtype = static_cast<at::ScalarType>(part.at("dtype").get<int>()),
                              .sizes = part.at("sizes"),
                              .offset_bytes = part.at("offset_bytes"),
                              .size_bytes = part.at("size_bytes")});
    }
    layout.columns.push_back(std::move(column));
  }
  return layout;
}

void fill_segment(ColumnDict columns, const SegmentLayout& layout, SharedMemoryMapping& mapping) {
  for (const ColumnSlot& column : layout.columns) {
    const auto node = columns.extract(column.name);  // released at the end of this round
    const std::vector<at::Tensor> parts = parts_of(node.mapped());
    for (size_t i = 0; i < parts.size(); ++i) {
      const TensorSlot& slot = column.parts[i];
      if (slot.size_bytes > 0) slot_tensor(slot, mapping.data(), [](void*) {}).copy_(parts[i].detach());
    }
  }
}

ColumnDict view_segment(const SegmentLayout& layout, std::shared_ptr<SharedMemoryMapping> mapping) {
  const auto view = [&](const TensorSlot& slot) {
    return slot.size_bytes == 0 ? at::empty(slot.sizes, at::TensorOptions(slot.dtype))
                                : slot_tensor(slot, mapping->data(), [mapping](void*) {});
  };
  ColumnDict out;
  for (const ColumnSlot& column : layout.columns) {
    if (column.ragged) {
      out[column.name] = Ragged{
          .values = view(column.parts.at(0)), .offsets = view(column.parts.at(1)), .padding = column.padding};
    } else {
      out[column.name] = view(column.parts.at(0));
    }
  }
  return out;
}

}  // namespace accelerate::detail
