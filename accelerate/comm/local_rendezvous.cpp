#include "accelerate/comm/local_rendezvous.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

struct AbstractName {
  sockaddr_un address{};
  socklen_t length = 0;
};

AbstractName abstract_name(const std::string& job_id) {
  AbstractName name;
  name.address.sun_family = AF_UNIX;
  const std::string text = concat("accelerate-", ::getuid(), "-", job_id);
  const size_t size = std::min(text.size(), sizeof(name.address.sun_path) - 1);
  std::memcpy(name.address.sun_path + 1, text.data(), size);  // byte 0 stays 0: the abstract namespace
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return name;
}

bool same_user(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 &&
         credentials.uid == ::getuid();
}

UniqueFd bind_loopback(uint16_t* port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw CommError({.what = "no port could be bound on 127.0.0.1", .got = errno_text(errno), .rank = 0});
  }
  *port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

LocalRendezvousServer::LocalRendezvousServer(const std::string& job_id, int peers, Deadline deadline)
    : listen_fd_(bind_loopback(&port_)),
      name_fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const AbstractName name = abstract_name(job_id);
  if (!name_fd_ ||
      ::bind(name_fd_.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      ::listen(name_fd_.get(), SOMAXCONN) != 0) {
    throw CommError({.what = concat("the local ranks of job '", job_id, "' can't meet"),
                     .got = errno_text(errno),
                     .hint =
                         "Another job with this id may run; set MASTER_ADDR=127.0.0.1 and a free MASTER_PORT "
                         "for all ranks instead.",
                     .rank = 0});
  }
  thread_ = std::thread([this, peers, deadline] { serve(peers, deadline); });
}

LocalRendezvousServer::~LocalRendezvousServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_fd_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void LocalRendezvousServer::serve(int peers, Deadline deadline) {
  for (int served = 0; served < peers;) {
    pollfd fds[] = {{name_fd_.get(), POLLIN, 0}, {stop_fd_.get(), POLLIN, 0}};
    const int ready = ::poll(fds, 2, deadline.poll_timeout_ms());
    if ((ready < 0 && errno == EINTR) || (ready == 0 && !deadline.expired())) continue;
    if (ready <= 0 || fds[1].revents != 0) return;
    const UniqueFd peer(::accept4(name_fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer || !same_user(peer.get())) continue;
    const uint16_t port = port_;
    if (::send(peer.get(), &port, sizeof(port), MSG_NOSIGNAL) == sizeof(port)) ++served;
  }
}

uint16_t ask_local_rendezvous(const std::string& job_id, int rank, Deadline deadline) {
  const AbstractName name = abstract_name(job_id);
  while (!deadline.expired()) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) == 0 &&
        same_user(fd.get())) {
      pollfd waiting{fd.get(), POLLIN, 0};
      uint16_t port = 0;
      if (::poll(&waiting, 1, deadline.poll_timeout_ms()) == 1 &&
          ::recv(fd.get(), &port, sizeof(port), MSG_WAITALL) == sizeof(port)) {
        return port;
      }
    }
    ::poll(nullptr, 0, 5);  // rank 0 is still starting
  }
  throw CommError(
      {.what = concat("rank 0 of job '", job_id, "' did not appear on this machine within ",
                      deadline.duration().count() / 1000, " s"),
       .hint = "If the ranks are on several machines, set MASTER_ADDR and MASTER_PORT for all of them.",
       .rank = rank});
}

}  // namespace accelerate
