#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// An IPv4 or IPv6 address with its port.
struct NetAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int port() const;
  void set_port(int port);
  bool loopback() const;
  /// The address alone, in numbers: "10.0.0.5", "fe80::1".
  std::string host() const;
};

/// All addresses of a host name, or the address itself where `host` is one; empty when the name is not known,
/// with the resolver's reason in `error`. May ask a name server, which takes seconds at worst.
std::vector<NetAddress> resolve(const std::string& host, int port, std::string& error);

/// Our end of a connected or bound socket.
NetAddress local_address(int fd);

/// A listening, non-blocking socket; empty on failure, with errno in `error`.
UniqueFd listen_at(const NetAddress& address, int& error);

/// Waits until a connection is made, `timeout_ms` passes, or `wake_fd` becomes readable; the socket that
/// comes back is non-blocking. Empty on failure, with errno in `error` (0 when woken).
UniqueFd connect_to(const NetAddress& address, int timeout_ms, int wake_fd, int& error);

}  // namespace accelerate::detail
