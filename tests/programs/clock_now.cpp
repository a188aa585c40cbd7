// Prints the monotonic time in seconds at its start: when a launcher had its first child running.
#include <cstdio>
#include <ctime>

int main() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::printf("started %ld.%09ld\n", static_cast<long>(now.tv_sec), now.tv_nsec);
  return 0;
}
