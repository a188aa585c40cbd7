#pragma once

#include <optional>
#include <string>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// A listening socket on the loopback address, bound before any rank starts so that no one else can take its
/// port.
struct ListenSocket {
  UniqueFd fd;  ///< close-on-exec
  int port = 0;
  std::string note;  ///< one line for the user when the usual port was taken, else empty
};

/// `wanted` as LaunchPlan::main_process_port.
/// @throws LaunchError naming the port, who holds it if that can be seen, and the flag.
ListenSocket open_listen_socket(std::optional<int> wanted);

/// "held by pid 123 (python3)", or "held by user 1000" where the process can't be seen, or empty.
std::string describe_port_holder(int port);

}  // namespace accelerate::detail
