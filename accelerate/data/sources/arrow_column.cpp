#include <ATen/Functions.h>
#include <arrow/array.h>
#include <arrow/extension/fixed_shape_tensor.h>
#include <arrow/extension_type.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/arrow_column_internal.h"

namespace accelerate::detail {
namespace {

const arrow::DataType& storage_of(const arrow::DataType& type) {
  if (type.id() != arrow::Type::EXTENSION) return type;
  return storage_of(*static_cast<const arrow::ExtensionType&>(type).storage_type());
}

bool is_bytes(arrow::Type::type id) {
  return arrow::is_base_binary_like(id) || arrow::is_binary_view_like(id);
}

// Arrow stores its tensors of a fixed shape as flat lists; the shape is that in memory, whatever order of
// dimensions their permutation shows.
std::optional<std::vector<int64_t>> tensor_shape(const arrow::DataType& type) {
  const auto* tensor = dynamic_cast<const arrow::extension::FixedShapeTensorType*>(&type);
  if (tensor == nullptr) return std::nullopt;
  int64_t numel = 1;
  for (const int64_t size : tensor->shape()) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  const auto& list = static_cast<const arrow::FixedSizeListType&>(*tensor->storage_type());
  return numel == list.list_size() ? std::optional(tensor->shape()) : std::nullopt;
}

// Layout of a number, or of an array of numbers of fixed sizes; nothing for all other types.
std::optional<ColumnLayout> value_layout(const arrow::DataType& declared) {
  const arrow::DataType& type = storage_of(declared);
  switch (type.id()) {
    case arrow::Type::BOOL:
      return ColumnLayout{.dtype = at::kBool};
    case arrow::Type::INT8:
      return ColumnLayout{.dtype = at::kChar};
    case arrow::Type::INT16:
      return ColumnLayout{.dtype = at::kShort};
    case arrow::Type::INT32:
      return ColumnLayout{.dtype = at::kInt};
    case arrow::Type::INT64:
      return ColumnLayout{.dtype = at::kLong};
    case arrow::Type::UINT8:
      return ColumnLayout{.dtype = at::kByte};
    case arrow::Type::UINT16:
      return ColumnLayout{.dtype = at::kUInt16};
    case arrow::Type::UINT32:
      return ColumnLayout{.dtype = at::kUInt32};
    case arrow::Type::UINT64:
      return ColumnLayout{.dtype = at::kUInt64};
    case arrow::Type::HALF_FLOAT:
      return ColumnLayout{.dtype = at::kHalf};
    case arrow::Type::FLOAT:
      return ColumnLayout{.dtype = at::kFloat};
    case arrow::Type::DOUBLE:
      return ColumnLayout{.dtype = at::kDouble};
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
      return ColumnLayout{.dtype = at::kLong, .unit = "day"};
    case arrow::Type::TIMESTAMP:
      return ColumnLayout{.dtype = at::kLong,
                          .unit = concat(static_cast<const arrow::TimestampType&>(type).unit())};
    case arrow::Type::DURATION:
      return ColumnLayout{.dtype = at::kLong,
                          .unit = concat(static_cast<const arrow::DurationType&>(type).unit())};
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
      return ColumnLayout{.dtype = at::kLong,
                          .unit = concat(static_cast<const arrow::TimeType&>(type).unit())};
    case arrow::Type::FIXED_SIZE_BINARY:
      return ColumnLayout{.dtype = at::kByte,
                          .sizes = {static_cast<const arrow::FixedSizeBinaryType&>(type).byte_width()}};
    case arrow::Type::FIXED_SIZE_LIST: {
      const auto& list = static_cast<const arrow::FixedSizeListType&>(type);
      auto layout = value_layout(*list.value_type());
      const std::vector<int64_t> sizes =
          tensor_shape(declared).value_or(std::vector<int64_t>{list.list_size()});
      if (layout) layout->sizes.insert(layout->sizes.begin(), sizes.begin(), sizes.end());
      return layout;
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string layout_text(const ColumnLayout& layout) {
  std::string text(c10::toString(layout.dtype));
  if (!layout.sizes.empty()) text += concat(" ", at::IntArrayRef(layout.sizes));
  if (!layout.unit.empty()) text += concat(" in ", layout.unit);
  return layout.ragged ? text + " of any length" : text;
}

ColumnLayout column_layout(const arrow::DataType& declared, const std::string& where) {
  const arrow::DataType& type = storage_of(declared);
  if (const auto layout = value_layout(declared)) return *layout;
  if (is_bytes(type.id())) return {.dtype = at::kByte, .ragged = true};
  if (type.id() == arrow::Type::DICTIONARY &&
      is_bytes(static_cast<const arrow::DictionaryType&>(type).value_type()->id())) {
    return {.dtype = at::kByte, .ragged = true};
  }
  if (type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST) {
    if (auto layout = value_layout(*static_cast<const arrow::BaseListType&>(type).value_type())) {
      layout->ragged = true;
      return *layout;
    }
  }
  throw DataError({.what = where,
                   .expected = "numbers, booleans, times, text, bytes, or lists of numbers",
                   .got = declared.ToString(),
                   .hint = "Convert it in Python first, or leave it out through ParquetOptions::columns."});
}

ColumnBuilder::ColumnBuilder(std::string name, ColumnLayout layout, int64_t rows)
    : name_(std::move(name)), layout_(std::move(layout)), rows_(rows) {
  row_bytes_ = static_cast<int64_t>(c10::elementSize(layout_.dtype));
  for (const int64_t size : layout_.sizes) row_bytes_ *= size;
  if (layout_.ragged) {
    offsets_ = at::empty({rows + 1}, at::TensorOptions(at::kLong));
    *offsets_.mutable_data_ptr<int64_t>() = 0;
  } else {
    values_ = new_values(rows);
  }
}

at::Tensor ColumnBuilder::new_values(int64_t count) const {
  std::vector<int64_t> sizes = layout_.sizes;
  sizes.insert(sizes.begin(), count);
  return at::empty(sizes, at::TensorOptions(layout_.dtype));
}

void ColumnBuilder::begin_file(const std::string& path) {
  path_ = path;
  file_begin_ = filled_;
}

void ColumnBuilder::append(const arrow::Array& declared) {
  if (declared.type_id() == arrow::Type::EXTENSION)
    return append(*static_cast<const arrow::ExtensionArray&>(declared).storage());
  if (declared.length() > rows_ - filled_)
    throw DataError({.what = concat(path_, " is damaged: column '", name_, "' has more rows than its file")});
  if (layout_.ragged) {
    append_ragged(declared);
  } else if (declared.length() > 0) {
    auto* to = static_cast<std::byte*>(values_.mutable_data_ptr()) + filled_ * row_bytes_;
    write(declared, to, [this](int64_t element) { return filled_ + element; });
  }
  filled_ += declared.length();
}

Column ColumnBuilder::finish() {
  if (filled_ != rows_) {
    throw DataError({.what = concat(path_, " is damaged: column '", name_, "'"),
                     .expected = concat(rows_, " rows"),
                     .got = std::to_string(filled_)});
  }
  if (!layout_.ragged) return std::move(values_);
  at::Tensor values = parts_.empty()       ? new_values(0)
                      : parts_.size() == 1 ? std::move(parts_.front())
                                           : at::cat(parts_, 0);
  parts_.clear();
  return Ragged{.values = std::move(values), .offsets = std::move(offsets_)};
}

void ColumnBuilder::append_ragged(const arrow::Array& array) {
  const auto views = [&]<class Bytes>(const Bytes& bytes) {
    refuse_nulls(array, [this](int64_t element) { return filled_ + element; });
    append_bytes(bytes.length(), [&](int64_t i) { return bytes.GetView(i); });
  };
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return views(static_cast<const arrow::BinaryArray&>(array));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return views(static_cast<const arrow::LargeBinaryArray&>(array));
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return views(static_cast<const arrow::BinaryViewArray&>(array));
    case arrow::Type::DICTIONARY:
      return append_dictionary(array);
    case arrow::Type::LIST:
      return append_lists(static_cast<const arrow::ListArray&>(array));
    case arrow::Type::LARGE_LIST:
      return append_lists(static_cast<const arrow::LargeListArray&>(array));
    default:
      // column_layout() lets no other type through, and the reader gives what the schema says.
      throw DataError({.what = concat(path_, " is damaged: column '", name_, "' changes its type"),
                       .got = array.type()->ToString()});
  }
}

void ColumnBuilder::append_dictionary(const arrow::Array& array) {
  const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
  const std::shared_ptr<arrow::Array> words = coded.dictionary();
  const auto views = [&]<class Bytes>(const Bytes& bytes) {
    for (int64_t i = 0; coded.null_count() + bytes.null_count() > 0 && i < coded.length(); ++i) {
      if (coded.IsNull(i) || bytes.IsNull(coded.GetValueIndex(i))) missing_value(filled_ + i);
    }
    append_bytes(coded.length(), [&](int64_t i) { return bytes.GetView(coded.GetValueIndex(i)); });
  };
  if (arrow::is_large_binary_like(words->type_id())) {
    views(static_cast<const arrow::LargeBinaryArray&>(*words));
  } else if (arrow::is_binary_view_like(words->type_id())) {
    views(static_cast<const arrow::BinaryViewArray&>(*words));
  } else {
    views(static_cast<const arrow::BinaryArray&>(*words));
  }
}

template <class View>
void ColumnBuilder::append_bytes(int64_t count, const View& view) {
  int64_t* offsets = offsets_.mutable_data_ptr<int64_t>() + filled_;
  for (int64_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + static_cast<int64_t>(view(i).size());
  const int64_t total = offsets[count] - offsets[0];
  if (total == 0) return;
  at::Tensor part = new_values(total);
  auto* to = static_cast<char*>(part.mutable_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view bytes = view(i);
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  }
  parts_.push_back(std::move(part));
}

template <class List>
void ColumnBuilder::append_lists(const List& lists) {
  refuse_nulls(lists, [this](int64_t element) { return filled_ + element; });
  const int64_t count = lists.length();
  if (count == 0) return;
  int64_t* offsets = offsets_.mutable_data_ptr<int64_t>() + filled_;
  for (int64_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + lists.value_length(i);
  const int64_t total = offsets[count] - offsets[0];
  if (total == 0) return;
  at::Tensor part = new_values(total);
  write(*lists.values()->Slice(lists.value_offset(0), total),
        static_cast<std::byte*>(part.mutable_data_ptr()), [&](int64_t element) {
          const int64_t* after = std::upper_bound(offsets, offsets + count + 1, offsets[0] + element);
          return filled_ + (after - offsets) - 1;
        });
  parts_.push_back(std::move(part));
}

void ColumnBuilder::write(const arrow::Array& array, std::byte* to, const RowOf& row_of) const {
  const int64_t length = array.length();
  switch (array.type_id()) {
    case arrow::Type::EXTENSION:
      return write(*static_cast<const arrow::ExtensionArray&>(array).storage(), to, row_of);
    case arrow::Type::FIXED_SIZE_LIST: {
      refuse_nulls(array, row_of);
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(array);
      const int64_t size = lists.list_type()->list_size();
      if (size == 0 || length == 0) return;
      const auto values = lists.values()->Slice(lists.value_offset(0), length * size);
      return write(*values, to, [&](int64_t element) { return row_of(element / size); });
    }
    case arrow::Type::BOOL: {
      refuse_nulls(array, row_of);
      const auto& bits = static_cast<const arrow::BooleanArray&>(array);
      auto* out = reinterpret_cast<bool*>(to);
      for (int64_t i = 0; i < length; ++i) out[i] = bits.Value(i);
      return;
    }
    case arrow::Type::DATE32:
    case arrow::Type::TIME32: {
      refuse_nulls(array, row_of);
      const auto* from = array.data()->GetValues<int32_t>(1);
      std::copy(from, from + length, reinterpret_cast<int64_t*>(to));
      return;
    }
    case arrow::Type::DATE64: {
      refuse_nulls(array, row_of);
      constexpr int64_t kMillisecondsPerDay = 86'400'000;  // Arrow keeps whole days only
      const auto* from = array.data()->GetValues<int64_t>(1);
      auto* out = reinterpret_cast<int64_t*>(to);
      for (int64_t i = 0; i < length; ++i) out[i] = from[i] / kMillisecondsPerDay;
      return;
    }
    default:
      return write_fixed_width(array, to, row_of);
  }
}

void ColumnBuilder::write_fixed_width(const arrow::Array& array, std::byte* to, const RowOf& row_of) const {
  const int64_t length = array.length();
  const int64_t width = array.type()->byte_width();
  if (width <= 0 || length == 0) return;
  std::memcpy(to, array.data()->buffers[1]->data() + array.offset() * width,
              static_cast<size_t>(length * width));
  if (array.null_count() == 0) return;
  if (!at::isFloatingType(layout_.dtype)) return refuse_nulls(array, row_of);
  const at::Tensor nan =
      at::full({}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions(layout_.dtype));
  for (int64_t i = 0; i < length; ++i) {
    if (array.IsNull(i)) std::memcpy(to + i * width, nan.const_data_ptr(), static_cast<size_t>(width));
  }
}

void ColumnBuilder::refuse_nulls(const arrow::Array& array, const RowOf& row_of) const {
  if (array.null_count() == 0) return;
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) missing_value(row_of(i));
  }
}

void ColumnBuilder::missing_value(int64_t row) const {
  throw DataError({.what = concat(path_, ": column '", name_, "', row ", row - file_begin_),
                   .expected = "a value",
                   .got = "null",
                   .hint = "Fill it in Python first (fillna), or leave the column out through "
                           "ParquetOptions::columns. Only in columns of floats null becomes NaN."});
}

}  // namespace accelerate::detail
