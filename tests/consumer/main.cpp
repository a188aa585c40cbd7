// Uses the torch-free part: throws and catches one of its errors across the library's border.
#include <accelerate/core/error.h>
#include <accelerate/core/version.h>

#include <cstdio>
#include <string>

int main() {
  try {
    throw accelerate::ConfigError({.what = "num_processes", .expected = "a number above 0", .got = "-1"});
  } catch (const accelerate::Error& error) {
    const std::string message = error.what();
    if (message.find("num_processes") == std::string::npos || error.exit_code() != 2) {
      std::printf("unexpected: %s, exit code %d\n", message.c_str(), error.exit_code());
      return 1;
    }
  }
  std::printf("consumer of accelerate %s: ok\n", accelerate::kVersion);
}
