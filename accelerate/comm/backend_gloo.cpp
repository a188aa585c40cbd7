// The only file that sees gloo's headers (Debian's libgloo-dev; the symbols are inside libtorch_cpu).
#include <netdb.h>
#include <sys/socket.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {
namespace {

// The address of the interface through which `master` is reached. A UDP socket that is connected sends
// nothing.
std::string local_address_towards(const std::string& master) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(master.c_str(), "9", &hints, &found) != 0) return {};
  std::string text;
  for (const addrinfo* entry = found; entry != nullptr && text.empty(); entry = entry->ai_next) {
    const UniqueFd fd(::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    char host[NI_MAXHOST];
    if (fd && ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, host, sizeof(host), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      text = host;
    }
  }
  ::freeaddrinfo(found);
  return text;
}

std::shared_ptr<::gloo::transport::Device> make_device(const BackendRequest& request) {
  using c10d::ProcessGroupGloo;
  // torch's own variable, for machines where the guess below is wrong.
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME"); name != nullptr && *name != '\0') {
    return ProcessGroupGloo::createDeviceForInterface(name);
  }
  if (request.loopback) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  const std::string address = local_address_towards(request.master_addr);
  if (address.empty()) return ProcessGroupGloo::createDefaultDevice();
  return ProcessGroupGloo::createDeviceForHostname(address);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request) {
  auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  options->devices.push_back(make_device(request));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.rank, request.size, options);
}

}  // namespace accelerate::detail
