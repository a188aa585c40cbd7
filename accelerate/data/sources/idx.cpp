#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/gzip.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {
namespace {

// Two zero bytes, the code of the dtype, the number of dimensions; then each size in 4 bytes, big end first;
// then the data, big end first.
at::ScalarType idx_dtype(unsigned char code, const std::string& path) {
  switch (code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0B:
      return at::kShort;
    case 0x0C:
      return at::kInt;
    case 0x0D:
      return at::kFloat;
    case 0x0E:
      return at::kDouble;
    default:
      throw DataError({.what = concat(path, " is no IDX file: its dtype code ", static_cast<int>(code),
                                      " is not known")});
  }
}

}  // namespace

at::Tensor load_idx(const std::string& path) {
  const std::string bytes = detail::read_maybe_gzipped(path);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  if (bytes.size() < 4 || data[0] != 0 || data[1] != 0) {
    throw DataError(
        {.what = concat(path, " is no IDX file"), .hint = "MNIST's own files are (…-ubyte, …-ubyte.gz)."});
  }
  const at::ScalarType dtype = idx_dtype(data[2], path);
  const size_t dims = data[3];
  std::vector<int64_t> sizes;
  size_t needed = c10::elementSize(dtype);
  for (size_t i = 0; i < dims && 8 + 4 * i <= bytes.size(); ++i) {
    const unsigned char* at = data + 4 + 4 * i;
    sizes.push_back((int64_t{at[0]} << 24) | (at[1] << 16) | (at[2] << 8) | at[3]);
    needed *= static_cast<size_t>(sizes.back());
  }
  const size_t begin = 4 + 4 * dims;
  if (sizes.size() != dims || bytes.size() < begin || bytes.size() - begin != needed) {
    throw DataError({.what = concat(path, " is no complete IDX file"),
                     .expected = concat(needed, " bytes of data after its header of ", begin),
                     .got = concat(bytes.size(), " bytes in all")});
  }
  at::Tensor out = at::empty(sizes, at::TensorOptions(dtype));
  if (needed == 0) return out;
  auto* target = static_cast<std::byte*>(out.data_ptr());
  std::memcpy(target, bytes.data() + begin, needed);
  const size_t width = out.element_size();
  for (size_t at = 0; width > 1 && at < needed; at += width) std::reverse(target + at, target + at + width);
  return out;
}

}  // namespace accelerate
