#include "accelerate/launch/listen_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr int kUsualPort = 29500;
constexpr int kTries = 100;
constexpr const char* kFlag = "--main_process_port";

NetAddress loopback(int port) {
  std::string ignored;
  return resolve("127.0.0.1", port, ignored).front();
}

std::string lock_name(int port) {
  return concat("accelerate-port-", port);
}

// Empty when another launcher has it. The kernel frees it with the process.
UniqueFd lock_port(int port) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = lock_name(port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return fd;
  if (errno == EADDRINUSE) return {};
  throw LaunchError({.what = concat("can't reserve port ", port, ": ", errno_text(errno))});
}

void let_others_listen(const UniqueFd& fd) {
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

// Empty on failure, with errno set.
UniqueFd bind_to(const NetAddress& address, bool reuse) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd && reuse) let_others_listen(fd);
  if (fd && ::bind(fd.get(), address.get(), address.bytes) == 0) {
    let_others_listen(fd);
    return fd;
  }
  return {};
}

// Nothing when the port is taken.
std::optional<ReservedPort> try_reserve(int port) {
  const NetAddress address = loopback(port);
  ReservedPort out;
  out.port = port;
  out.lock = lock_port(port);
  if (!out.lock) return std::nullopt;
  int error = 0;
  // Binding alone would not notice a server that listens there with SO_REUSEADDR, listening does.
  if (listen_at(address, error)) {
    out.fd = bind_to(address, true);
    if (out.fd) return out;
    error = errno;
  }
  if (error == EADDRINUSE) return std::nullopt;
  ErrorText text{.what = concat("can't listen on port ", port, ": ", errno_text(error))};
  if (error == EACCES) text.hint = concat("Ports below 1024 are reserved: choose another with ", kFlag, ".");
  throw LaunchError(std::move(text));
}

struct SocketEntry {
  std::string inode;
  std::string user;
};

// The listening socket at `port` in /proc/net/tcp or tcp6.
std::optional<SocketEntry> find_listener(const char* table, int port) {
  std::array<char, 8> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // column titles
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
    words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
    const bool listening = state == "0A";
    if (listening && local.size() > 5 && local.substr(local.size() - 5) == wanted.data()) {
      return SocketEntry{inode, user};
    }
  }
  return std::nullopt;
}

// The process that has the socket open, where we may look.
std::string find_owner(const std::string& inode) {
  namespace fs = std::filesystem;
  const std::string wanted = concat("socket:[", inode, "]");
  std::error_code error;
  for (const auto& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (!parse_int(pid)) continue;
    for (const auto& entry : fs::directory_iterator(process.path() / "fd", error)) {
      if (fs::read_symlink(entry.path(), error) != wanted) continue;
      std::ifstream file(process.path() / "comm");
      std::string name;
      std::getline(file, name);
      return concat("pid ", pid, " (", name, ")");
    }
  }
  return {};
}

// The inode of a launcher's lock in /proc/net/unix, or empty.
std::string find_lock(int port) {
  std::ifstream file("/proc/net/unix");
  const std::string wanted = concat("@", lock_name(port));
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string slot, references, protocol, flags, type, state, inode, path;
    words >> slot >> references >> protocol >> flags >> type >> state >> inode >> path;
    if (path == wanted) return inode;
  }
  return {};
}

}  // namespace

std::string describe_port_holder(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto entry = find_listener(table, port);
    if (!entry) continue;
    const std::string owner = find_owner(entry->inode);
    return concat("held by ", owner.empty() ? concat("a process of user id ", entry->user) : owner);
  }
  const std::string lock = find_lock(port);
  if (lock.empty()) return {};
  const std::string owner = find_owner(lock);
  return concat("held by ", owner.empty() ? "another `accel launch`" : owner);
}

ReservedPort reserve_any_port(NetAddress address) {
  address.set_port(0);
  for (int tries = 0; tries < kTries; ++tries) {
    ReservedPort out;
    out.fd = bind_to(address, false);
    if (!out.fd)
      throw LaunchError({.what = concat("no free port at ", address.host(), ": ", errno_text(errno)),
                         .hint = descriptor_hint(errno)});
    out.port = local_address(out.fd.get()).port();
    out.lock = lock_port(out.port);
    if (out.lock) return out;
  }
  throw LaunchError({.what = concat("other launchers have every port of ", address.host())});
}

ReservedPort reserve_port(std::optional<int> wanted) {
  if (wanted == 0) return reserve_any_port(loopback(0));
  const int port = wanted.value_or(kUsualPort);
  if (auto out = try_reserve(port)) return std::move(*out);
  const std::string holder = describe_port_holder(port);
  const std::string taken = concat("port ", port, " is taken", holder.empty() ? "" : ", ", holder);
  if (wanted) {
    throw LaunchError(
        {.what = taken,
         .hint = concat("Give another port with ", kFlag, ", or 0 for any free one (", kFlag, " 0).")});
  }
  ReservedPort out = reserve_any_port(loopback(0));
  out.note = concat(taken, "; using ", out.port, " instead");
  return out;
}

UniqueFd open_store_socket() {
  int error = 0;
  UniqueFd fd = listen_at(loopback(0), error);
  if (!fd)
    throw LaunchError(
        {.what = concat("no port for the store: ", errno_text(error)), .hint = descriptor_hint(error)});
  return fd;
}

}  // namespace accelerate::detail
