#include "accelerate/launch/listen_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr int kUsualPort = 29500;
constexpr int kBacklog = 4096;  // ranks connect all at once; the kernel cuts this to net.core.somaxconn
constexpr const char* kFlag = "--main_process_port";

// An empty descriptor means that the port is taken.
UniqueFd try_listen(int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw LaunchError({.what = concat("socket: ", errno_text(errno))});
  // Connections of the previous run in TIME_WAIT must not block the port.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  if (errno == EADDRINUSE) return UniqueFd();
  ErrorText text{.what = concat("can't listen on port ", port, ": ", errno_text(errno))};
  if (errno == EACCES) text.hint = concat("Ports below 1024 are reserved: choose another with ", kFlag, ".");
  throw LaunchError(std::move(text));
}

int port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    throw LaunchError({.what = concat("getsockname: ", errno_text(errno))});
  }
  return ntohs(address.sin_port);
}

UniqueFd listen_anywhere() {
  UniqueFd fd = try_listen(0);
  if (!fd) throw LaunchError({.what = "no free port is left on the loopback address"});
  return fd;
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

}  // namespace

std::string describe_port_holder(int port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto entry = find_listener(table, port);
    if (!entry) continue;
    const std::string owner = find_owner(entry->inode);
    return concat("held by ", owner.empty() ? concat("a process of user id ", entry->user) : owner);
  }
  return {};
}

ListenSocket open_listen_socket(std::optional<int> wanted) {
  ListenSocket out;
  if (wanted == 0) {
    out.fd = listen_anywhere();
  } else {
    const int port = wanted.value_or(kUsualPort);
    out.fd = try_listen(port);
    if (!out.fd) {
      const std::string holder = describe_port_holder(port);
      const std::string taken = concat("port ", port, " is taken", holder.empty() ? "" : ", ", holder);
      if (wanted) {
        throw LaunchError(
            {.what = taken,
             .hint = concat("Give another port with ", kFlag, ", or 0 for any free one (", kFlag, " 0).")});
      }
      out.fd = listen_anywhere();
      out.note = concat(taken, "; using ", port_of(out.fd), " instead");
    }
  }
  out.port = port_of(out.fd);
  return out;
}

}  // namespace accelerate::detail
