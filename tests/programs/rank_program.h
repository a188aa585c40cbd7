#pragma once

#include <unistd.h>

#include <exception>
#include <iostream>
#include <string>

#include "accelerate/core/error.h"

// What the programs that tests start as ranks share.
namespace accelerate::testing {

/// One line on standard output, in one write, so that a rank that is killed afterwards has said it.
inline void say(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

/// Runs `body`; returns what main() is to return, as the README has it.
template <class Body>
int run_rank(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}

}  // namespace accelerate::testing
