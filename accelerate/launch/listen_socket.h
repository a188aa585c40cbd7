#pragma once

#include <optional>
#include <string>

#include "accelerate/core/unique_fd.h"
#include "accelerate/launch/net_address.h"

// The two ports of a job
// ----------------------
// Rank 0 of a program of ours serves the store on a socket that the launcher has bound and listens on, at a
// port that the kernel chose: ranks can connect from the first moment on, and nobody can take its place.
// Programs that know only MASTER_ADDR and MASTER_PORT open a store of their own there. For them MASTER_PORT
// is a second port, which the launcher binds but does not listen on: the kernel gives it to nobody who asks
// for any free port, yet a socket with SO_REUSEADDR, which every store sets, may bind and listen on it. Other
// launchers are kept away by a lock, an abstract socket whose name holds the port, since they too set
// SO_REUSEADDR. Without that, connections of an earlier run in TIME_WAIT would block the port.

namespace accelerate::detail {

/// A port that the ranks' own programs may listen on while this object lives.
struct ReservedPort {
  UniqueFd fd;    ///< bound, not listening, close-on-exec
  UniqueFd lock;  ///< what keeps other launchers away
  int port = 0;
  std::string note;  ///< one line for the user when the usual port was taken, else empty
};

/// On the loopback address; `wanted` as LaunchPlan::main_process_port.
/// @throws LaunchError naming the port, who holds it if that can be seen, and the flag.
ReservedPort reserve_port(std::optional<int> wanted);

/// Any free port of an address. @throws LaunchError when none is left.
ReservedPort reserve_any_port(NetAddress address);

/// A listening socket at any free port of the loopback address.
UniqueFd open_store_socket();

/// "held by pid 123 (python3)", or "held by user 1000" where the process can't be seen, or empty.
std::string describe_port_holder(int port);

}  // namespace accelerate::detail
