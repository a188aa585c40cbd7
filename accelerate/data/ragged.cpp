#include "accelerate/data/ragged.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// Bytes of one element of a row, with all dimensions below the first.
int64_t element_bytes(const at::Tensor& values) {
  int64_t bytes = static_cast<int64_t>(values.element_size());
  for (int64_t d = 1; d < values.dim(); ++d) bytes *= values.size(d);
  return bytes;
}

at::Tensor offsets_of(const std::vector<int64_t>& lengths) {
  at::Tensor offsets = at::zeros({static_cast<int64_t>(lengths.size()) + 1}, at::TensorOptions(at::kLong));
  int64_t* out = offsets.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < lengths.size(); ++i) out[i + 1] = out[i] + lengths[i];
  return offsets;
}

}  // namespace

Ragged Ragged::from_rows(const std::vector<at::Tensor>& rows, const Padding& padding) {
  if (rows.empty())
    throw DataError({.what = "rows of different lengths", .expected = "at least one row", .got = "none"});
  std::vector<int64_t> lengths;
  const at::Tensor& first = rows.front();
  for (size_t i = 0; i < rows.size(); ++i) {
    const at::Tensor& row = rows[i];
    const bool fits = row.defined() && row.dim() > 0 && row.dim() == first.dim() &&
                      row.scalar_type() == first.scalar_type() &&
                      row.sizes().slice(1) == first.sizes().slice(1);
    if (!fits) {
      throw DataError({.what = concat("row ", i, " of rows of different lengths"),
                       .expected = "one dimension or more, and the dtype and further dimensions of row 0",
                       .got = row.defined() ? concat(row.toString(), " ", row.sizes()) : "undefined"});
    }
    lengths.push_back(row.size(0));
  }
  return {.values = at::cat(rows, 0).detach().cpu(), .offsets = offsets_of(lengths), .padding = padding};
}

Ragged Ragged::from_strings(const std::vector<std::string>& rows, const Padding& padding) {
  std::vector<int64_t> lengths;
  for (const std::string& row : rows) lengths.push_back(static_cast<int64_t>(row.size()));
  Ragged out{.values = {}, .offsets = offsets_of(lengths), .padding = padding};
  out.values = at::empty({out.offsets[out.size()].item<int64_t>()}, at::TensorOptions(at::kByte));
  auto* to = static_cast<char*>(out.values.mutable_data_ptr());
  for (const std::string& row : rows) to = std::copy(row.begin(), row.end(), to);
  return out;
}

void Ragged::check_row(int64_t i) const {
  if (i >= 0 && i < size()) return;
  throw DataError({.what = "row number", .expected = concat("0 to ", size() - 1), .got = std::to_string(i)});
}

at::Tensor Ragged::row(int64_t i) const {
  check_row(i);
  const int64_t* bounds = offsets.const_data_ptr<int64_t>();
  return values.narrow(0, bounds[i], bounds[i + 1] - bounds[i]);
}

at::Tensor Ragged::lengths() const {
  return offsets.slice(0, 1) - offsets.slice(0, 0, -1);
}

at::Tensor Ragged::lengths(std::span<const int64_t> rows) const {
  at::Tensor out = at::empty({static_cast<int64_t>(rows.size())}, at::TensorOptions(at::kLong));
  const int64_t* bounds = offsets.const_data_ptr<int64_t>();
  int64_t* to = out.mutable_data_ptr<int64_t>();
  for (const int64_t row : rows) check_row(row);
  for (const int64_t row : rows) *to++ = bounds[row + 1] - bounds[row];
  return out;
}

at::Tensor Ragged::padded(std::span<const int64_t> rows) const {
  const int64_t* bounds = offsets.const_data_ptr<int64_t>();
  for (const int64_t row : rows) check_row(row);
  int64_t longest = 0;
  for (const int64_t row : rows) longest = std::max(longest, bounds[row + 1] - bounds[row]);
  longest = (longest + padding.multiple_of - 1) / padding.multiple_of * padding.multiple_of;
  std::vector<int64_t> sizes = values.sizes().vec();
  sizes[0] = longest;
  sizes.insert(sizes.begin(), static_cast<int64_t>(rows.size()));
  at::Tensor out = at::empty(sizes, values.options());
  if (out.numel() == 0) return out;
  // One element of padding, repeated bytewise: one pass over the batch, whatever the dtype.
  const int64_t width = element_bytes(values);
  const at::Tensor filling = at::full(values.sizes().slice(1), padding.value, values.options()).contiguous();
  const auto* fill = static_cast<const char*>(filling.const_data_ptr());
  const bool zero = std::all_of(fill, fill + width, [](char byte) { return byte == 0; });
  const auto* from = static_cast<const char*>(values.const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  for (const int64_t row : rows) {
    const int64_t length = bounds[row + 1] - bounds[row];
    if (length > 0) std::memcpy(to, from + bounds[row] * width, static_cast<size_t>(length * width));
    to += length * width;
    const int64_t rest = longest - length;
    if (zero) {
      std::memset(to, 0, static_cast<size_t>(rest * width));
    } else {
      for (int64_t i = 0; i < rest; ++i) std::memcpy(to + i * width, fill, static_cast<size_t>(width));
    }
    to += rest * width;
  }
  return out;
}

void Ragged::check(const std::string& name) const {
  const auto problem = [&](const std::string& expected, const std::string& got) {
    return DataError({.what = concat("ragged column '", name, "'"), .expected = expected, .got = got});
  };
  if (!values.defined() || !offsets.defined()) throw problem("values and offsets", "an undefined tensor");
  if (values.dim() == 0 || values.layout() != at::kStrided || values.is_quantized())
    throw problem("dense values [total, ...]", concat(values.toString(), " ", values.sizes()));
  if (offsets.dim() != 1 || offsets.size(0) < 1 || offsets.scalar_type() != at::kLong)
    throw problem("int64 offsets [rows + 1]", concat(offsets.toString(), " ", offsets.sizes()));
  constexpr int64_t kMostMultiple = 1 << 24;
  if (padding.multiple_of < 1 || padding.multiple_of > kMostMultiple)
    throw problem(concat("padding to a multiple of 1 to ", kMostMultiple),
                  std::to_string(padding.multiple_of));
  try {
    const at::Tensor filling = at::full({1}, padding.value, values.options());
  } catch (const std::exception&) {
    throw problem(concat("a padding value that ", c10::toString(values.scalar_type()), " can hold"),
                  std::to_string(padding.value));
  }
  const at::Tensor plain = offsets.cpu().contiguous();
  const int64_t* bounds = plain.const_data_ptr<int64_t>();
  const int64_t rows = plain.size(0) - 1;
  const int64_t* falls = std::is_sorted_until(bounds, bounds + rows + 1);
  if (bounds[0] != 0 || bounds[rows] != values.size(0) || falls != bounds + rows + 1) {
    throw problem(concat("offsets that rise from 0 to ", values.size(0), ", the number of values"),
                  falls == bounds + rows + 1
                      ? concat(bounds[0], " to ", bounds[rows])
                      : concat(falls[0], " after ", falls[-1], " at position ", falls - bounds));
  }
}

int64_t column_size(const Column& column) {
  if (const auto* ragged = std::get_if<Ragged>(&column)) return ragged->size();
  return std::get<at::Tensor>(column).size(0);
}

}  // namespace accelerate
