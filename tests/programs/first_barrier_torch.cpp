// A rank that starts, meets the others, passes one barrier, and prints the monotonic time in seconds.
#include <cstdio>
#include <ctime>

#include "accelerate/accelerate.h"

int main() {
  accelerate::Accelerator accelerator;
  accelerator.wait_for_everyone();
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("past barrier %ld.%09ld\n", static_cast<long>(now.tv_sec), now.tv_nsec);
  return 0;
}
