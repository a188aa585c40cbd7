#include "accelerate/data/sources/npy_format.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

// The header is a Python dict literal with three fixed keys; NumPy itself always writes them in this way:
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

struct NpyType {
  const char* code;
  at::ScalarType dtype;
};
constexpr std::array<NpyType, 14> kTypes = {{{"f4", at::kFloat},
                                             {"f8", at::kDouble},
                                             {"f2", at::kHalf},
                                             {"i1", at::kChar},
                                             {"i2", at::kShort},
                                             {"i4", at::kInt},
                                             {"i8", at::kLong},
                                             {"u1", at::kByte},
                                             {"u2", at::kUInt16},
                                             {"u4", at::kUInt32},
                                             {"u8", at::kUInt64},
                                             {"b1", at::kBool},
                                             {"c8", at::kComplexFloat},
                                             {"c16", at::kComplexDouble}}};

[[noreturn]] void damaged(const std::string& name, const std::string& what) {
  throw DataError({.what = concat(name, " is no complete .npy array: ", what)});
}

// The text after 'key': up to the end of the value.
std::string value_of(const std::string& text, const std::string& key, const std::string& name) {
  const size_t at = text.find(concat("'", key, "':"));
  if (at == std::string::npos) damaged(name, concat("its header has no '", key, "'"));
  std::string rest = trim(std::string_view(text).substr(at + key.size() + 3));
  if (rest.starts_with('\'')) return rest.substr(1, rest.find('\'', 1) - 1);
  if (rest.starts_with('(')) return rest.substr(1, rest.find(')') - 1);
  return rest.substr(0, rest.find_first_of(",}"));
}

NpyHeader parse_header(const std::string& text, const std::string& name) {
  NpyHeader header;
  header.descr = value_of(text, "descr", name);
  header.fortran_order = trim(value_of(text, "fortran_order", name)) == "True";
  for (const std::string& part : split(value_of(text, "shape", name), ',')) {
    if (trim(part).empty()) continue;
    const auto size = parse_int(part);
    if (!size || *size < 0) damaged(name, concat("the size '", part, "' in its shape"));
    header.shape.push_back(*size);
  }
  return header;
}

at::ScalarType dtype_of(const std::string& descr, const std::string& name) {
  for (const NpyType& type : kTypes) {
    if (descr.size() > 1 && descr.substr(1) == type.code) return type.dtype;
  }
  const bool objects = descr.find('O') != std::string::npos;
  throw DataError(
      {.what = concat(name, ": dtype '", descr, "'"),
       .expected = "numbers or booleans",
       .hint = objects ? "An array of Python objects can only be read by Python; save plain arrays instead."
                       : "Convert the array in Python first, e.g. a.astype('float32')."});
}

uint64_t element_count(const NpyHeader& header, const std::string& name) {
  uint64_t count = 1;
  for (const int64_t size : header.shape) {
    if (size > 0 && count > std::numeric_limits<uint64_t>::max() / 16 / static_cast<uint64_t>(size)) {
      damaged(name, "its shape is not possible");
    }
    count *= static_cast<uint64_t>(size);
  }
  return count;
}

void swap_bytes(at::Tensor& tensor) {
  // A complex number is two numbers.
  const size_t width = tensor.element_size() / (tensor.is_complex() ? 2 : 1);
  auto* data = static_cast<std::byte*>(tensor.data_ptr());
  for (size_t at = 0; at < tensor.nbytes(); at += width) std::reverse(data + at, data + at + width);
}

}  // namespace

at::Tensor parse_npy(std::span<std::byte> bytes, std::shared_ptr<void> owner, const std::string& name) {
  if (bytes.size() < 10 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0)
    damaged(name, "it does not begin as one");
  const int version = static_cast<int>(bytes[6]);
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (version < 1 || version > 3) damaged(name, concat("format version ", version, " is not known"));
  size_t header_bytes = 0;
  if (bytes.size() < 8 + length_bytes) damaged(name, "it ends in its header");
  for (size_t i = 0; i < length_bytes; ++i) header_bytes |= static_cast<size_t>(bytes[8 + i]) << (8 * i);
  const size_t begin = 8 + length_bytes + header_bytes;
  if (begin > bytes.size()) damaged(name, "it ends in its header");
  const NpyHeader header = parse_header(
      std::string(reinterpret_cast<const char*>(bytes.data()) + 8 + length_bytes, header_bytes), name);

  const at::ScalarType dtype = dtype_of(header.descr, name);
  const uint64_t needed = element_count(header, name) * c10::elementSize(dtype);
  if (needed > bytes.size() - begin) {
    damaged(name, concat("its shape needs ", needed, " bytes, ", bytes.size() - begin, " are there"));
  }
  std::vector<int64_t> sizes = header.shape;
  if (header.fortran_order) std::reverse(sizes.begin(), sizes.end());
  at::Tensor tensor = needed == 0
                          ? at::empty(sizes, at::TensorOptions(dtype))
                          : at::from_blob(
                                bytes.data() + begin, sizes, [owner](void*) {}, at::TensorOptions(dtype));
  if (header.descr[0] == '>' && needed > 0) {
    tensor = tensor.clone();
    swap_bytes(tensor);
  }
  // An unaligned start would make every kernel slow or wrong; NumPy aligns, members of an archive need not
  // be.
  if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % tensor.element_size() != 0)
    tensor = tensor.clone();
  return header.fortran_order ? tensor.permute([&] {
    std::vector<int64_t> order;
    for (int64_t i = tensor.dim() - 1; i >= 0; --i) order.push_back(i);
    return order;
  }())
                              : tensor;
}

}  // namespace accelerate::detail
