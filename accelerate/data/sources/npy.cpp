#include "accelerate/core/file_mapping.h"
#include "accelerate/data/sources/npy_format.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {

at::Tensor load_npy(const std::string& path) {
  auto mapping = std::make_shared<FileMapping>(path);
  const auto bytes = mapping->bytes();
  return detail::parse_npy(bytes, std::move(mapping), path);
}

}  // namespace accelerate
