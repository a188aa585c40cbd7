#include "accelerate/comm/serializer.h"

#include <ATen/Functions.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

std::span<const std::byte> ByteReader::take(size_t size_bytes) {
  if (size_bytes > bytes_.size()) {
    throw DataError({.what = "reading a value from bytes",
                     .expected = concat(size_bytes, " more bytes"),
                     .got = concat(bytes_.size(), " bytes"),
                     .hint = "It must be read as the type that was written, member by member."});
  }
  const auto out = bytes_.first(size_bytes);
  bytes_ = bytes_.subspan(size_bytes);
  return out;
}

void detail::throw_left_over(size_t size_bytes) {
  throw DataError({.what = "reading a value from bytes",
                   .got = concat(size_bytes, " bytes more than it has"),
                   .hint = "It must be read as the type that was written, member by member."});
}

void Serializer<at::Tensor>::save(ByteWriter& writer, const at::Tensor& tensor) {
  save_value<bool>(writer, tensor.defined());
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw DataError({.what = "a tensor as bytes",
                     .expected = "a dense tensor",
                     .got = concat(tensor.toString(), " of another layout"),
                     .hint = "Use to_dense()."});
  }
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  save_value<int8_t>(writer, static_cast<int8_t>(plain.scalar_type()));
  save_value(writer, plain.sizes().vec());
  writer.write(plain.const_data_ptr(), plain.nbytes());
}

at::Tensor Serializer<at::Tensor>::load(ByteReader& reader) {
  if (!load_value<bool>(reader)) return {};
  const auto dtype = static_cast<at::ScalarType>(load_value<int8_t>(reader));
  const auto sizes = load_value<std::vector<int64_t>>(reader);
  at::Tensor out = at::empty(sizes, at::TensorOptions(dtype));
  reader.read(out.mutable_data_ptr(), out.nbytes());
  return out;
}

}  // namespace accelerate
