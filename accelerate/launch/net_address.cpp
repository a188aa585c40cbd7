#include "accelerate/launch/net_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace accelerate::detail {
namespace {

constexpr int kBacklog = 4096;

UniqueFd new_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

int NetAddress::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void NetAddress::set_port(int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = number;
  }
}

bool NetAddress::loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
}

std::string NetAddress::host() const {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(get(), bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return text.data();
}

std::vector<NetAddress> resolve(const std::string& host, int port, std::string& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  std::vector<NetAddress> out;
  if (code != 0) {
    error = ::gai_strerror(code);
    return out;
  }
  for (const addrinfo* item = found; item != nullptr; item = item->ai_next) {
    if (item->ai_family != AF_INET && item->ai_family != AF_INET6) continue;
    NetAddress address;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.bytes = item->ai_addrlen;
    address.set_port(port);
    out.push_back(address);
  }
  ::freeaddrinfo(found);
  if (out.empty()) error = "no IPv4 or IPv6 address";
  return out;
}

NetAddress local_address(int fd) {
  NetAddress out;
  out.bytes = sizeof out.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&out.storage), &out.bytes);
  return out;
}

UniqueFd listen_at(const NetAddress& address, int& error) {
  UniqueFd fd = new_socket(address.storage.ss_family);
  // Connections of the previous run in TIME_WAIT must not block the port.
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd && ::bind(fd.get(), address.get(), address.bytes) == 0 && ::listen(fd.get(), kBacklog) == 0)
    return fd;
  error = errno;
  return {};
}

UniqueFd connect_to(const NetAddress& address, int timeout_ms, int wake_fd, int& error) {
  UniqueFd fd = new_socket(address.storage.ss_family);
  error = errno;
  if (!fd) return {};
  if (::connect(fd.get(), address.get(), address.bytes) == 0) return fd;
  error = errno;
  if (error != EINPROGRESS && error != EINTR) return {};
  pollfd items[2] = {{fd.get(), POLLOUT, 0}, {wake_fd, POLLIN, 0}};
  int ready;
  do {
    ready = ::poll(items, 2, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  error = ready == 0 ? ETIMEDOUT : 0;
  if (items[0].revents == 0) return {};
  socklen_t bytes = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return {};
  return fd;
}

}  // namespace accelerate::detail
