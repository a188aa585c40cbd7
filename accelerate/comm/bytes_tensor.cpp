#include "accelerate/comm/bytes_tensor.h"

#include <ATen/Functions.h>

#include <cstring>

namespace accelerate::detail {

at::Tensor bytes_tensor(std::string_view text, int64_t size) {
  at::Tensor out = at::zeros({size}, at::TensorOptions(at::kByte));
  std::memcpy(out.mutable_data_ptr(), text.data(), text.size());
  return out;
}

std::string text_of_bytes(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

}  // namespace accelerate::detail
