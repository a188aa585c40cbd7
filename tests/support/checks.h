#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// Checks for code that runs on rank threads, where Catch's own assertions must not be used: they throw.
namespace accelerate::test {

inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

inline void require_contains(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + part + "' not in: " + text);
}

/// The text of the exception that `action` throws, which must be an `Expected`.
template <class Expected = std::exception, class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const Expected& error) {
    return error.what();
  }
  return "no error";
}

#ifdef ACCELERATE_TEST_WITH_TORCH
/// The numbers of an int64 tensor.
inline std::vector<int64_t> ids(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.cpu().contiguous();
  return {plain.const_data_ptr<int64_t>(), plain.const_data_ptr<int64_t>() + plain.numel()};
}
#endif

}  // namespace accelerate::test
