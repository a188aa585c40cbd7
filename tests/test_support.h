#pragma once

// The only header that includes Catch. torch must come first: it defines CHECK, and where Catch comes first
// its CHECK is silently replaced by one that counts no assertion.
#ifdef ACCELERATE_TEST_WITH_TORCH
#include <torch/torch.h>
#undef CHECK
#endif

#ifdef ACCELERATE_CATCH3
#include <catch2/catch_all.hpp>
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>
inline auto ContainsSubstring(const std::string& text) {
  return Catch::Matchers::Contains(text);
}
#endif
