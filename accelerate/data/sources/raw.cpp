#include <ATen/Functions.h>

#include "accelerate/core/error.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {

at::Tensor load_raw(const std::string& path, at::ScalarType dtype, std::vector<int64_t> sizes,
                    int64_t offset_bytes) {
  auto mapping = std::make_shared<FileMapping>(path);
  const auto width = static_cast<int64_t>(c10::elementSize(dtype));
  const auto file_bytes = static_cast<int64_t>(mapping->bytes().size());
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& size : sizes) {
    if (size == -1 && open == nullptr) {
      open = &size;
    } else if (size < 0) {
      throw DataError({.what = concat("the shape for ", path),
                       .expected = "sizes of 0 or more and at most one -1",
                       .got = std::to_string(size)});
    } else {
      known *= size;
    }
  }
  if (offset_bytes < 0 || offset_bytes > file_bytes || offset_bytes % width != 0) {
    throw DataError({.what = concat("the offset into ", path),
                     .expected = concat("a multiple of ", width, " up to ", file_bytes),
                     .got = std::to_string(offset_bytes)});
  }
  const int64_t elements = (file_bytes - offset_bytes) / width;
  if (open != nullptr) *open = known == 0 ? 0 : elements / known;
  const int64_t wanted = open != nullptr ? *open * known : known;
  if (wanted > elements ||
      (open != nullptr && (wanted != elements || (file_bytes - offset_bytes) % width != 0))) {
    throw DataError({.what = path,
                     .expected = open != nullptr
                                     ? concat("a whole number of rows of ", known * width, " bytes")
                                     : concat("at least ", wanted * width, " bytes"),
                     .got = concat(file_bytes - offset_bytes, " bytes"),
                     .hint = "Check dtype, shape and offset."});
  }
  const auto options = at::TensorOptions(dtype);
  if (wanted == 0) return at::empty(sizes, options);
  std::byte* data = mapping->bytes().data() + offset_bytes;
  return at::from_blob(
      data, sizes, [mapping](void*) {}, options);
}

}  // namespace accelerate
