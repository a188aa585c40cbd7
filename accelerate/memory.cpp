#include "accelerate/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <array>
#include <new>
#include <string_view>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  static constexpr std::array<std::string_view, 4> kSigns = {
      "out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"};
  const std::string_view text = error.what();
  for (const std::string_view sign : kSigns) {
    if (text.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

void empty_device_cache() {
  // Only a device with an allocator of its own has anything to give back.
  if (at::accelerator::isAccelerator(at::kCUDA) && at::hasCUDA()) at::accelerator::emptyCache();
}

void throw_no_executable_batch_size(int64_t starting_batch_size) {
  std::throw_with_nested(
      ConfigError({.what = concat("no batch size from ", starting_batch_size, " down to 1 fits into memory"),
                   .hint = "Use a smaller model or gradient checkpointing."}));
}

}  // namespace accelerate
