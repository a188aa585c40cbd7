// Includes every public header, as installed, without any precompiled header; needs LibTorch to run.
#include <torch/types.h>
#include "all_headers.h"

#include <cstdio>

#if __has_include(<accelerate/accelerator.h>)
#include <accelerate/accelerator.h>
#define HAVE_ACCELERATOR
#endif

int main() {
#ifdef HAVE_ACCELERATOR
  // Started plainly, so this is a job of one process.
  accelerate::Accelerator accelerator;
#endif
  if (torch::ones({3, 4}).sum().item<double>() != 12.0) {
    std::printf("LibTorch does not add up\n");
    return 1;
  }
  std::printf("consumer of accelerate %s on torch: ok\n", accelerate::kVersion);
}
