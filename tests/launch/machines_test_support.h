#pragma once

// Several launchers on the loopback address, each as if it were a machine of its own.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "launch_test_support.h"
#include "test_support.h"

namespace accelerate::testing {

using Words = std::vector<std::string>;

struct Socket {
  explicit Socket(int port) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
  accelerate::UniqueFd fd;
  sockaddr_in address{};
};

// One that nobody has; a moment later somebody may, which would fail the test and not pass it.
inline int free_port() {
  Socket socket(0);
  REQUIRE(::bind(socket.fd.get(), socket.get(), sizeof socket.address) == 0);
  socklen_t bytes = sizeof socket.address;
  REQUIRE(::getsockname(socket.fd.get(), socket.get(), &bytes) == 0);
  return ntohs(socket.address.sin_port);
}

// A job on several "machines" with two ranks each.
class Job {
 public:
  explicit Job(int machines, const Words& flags = {}, const std::string& connect_timeout = "25")
      : machines_(machines), port_(free_port()), flags_(flags) {
    flags_.insert(flags_.end(), {"--connect_timeout", connect_timeout});
  }

  Words words(int machine, const Words& script, const Words& flags = {}) const {
    Words out = {"--num_machines",        std::to_string(machines_), "--machine_rank",
                 std::to_string(machine), "--main_process_ip",       "127.0.0.1",
                 "--main_process_port",   std::to_string(port_)};
    out.insert(out.end(), flags_.begin(), flags_.end());
    out.insert(out.end(), flags.begin(), flags.end());
    return launch_words(2 * machines_, script, out);
  }
  AccelRun& start(int machine, const Words& script, const Words& flags = {}) {
    runs_.push_back(std::make_unique<AccelRun>(words(machine, script, flags)));
    return *runs_.back();
  }
  int port() const { return port_; }

 private:
  int machines_;
  int port_;
  Words flags_;
  std::vector<std::unique_ptr<AccelRun>> runs_;
};

inline int64_t ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start)
      .count();
}

inline std::string value_after(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  if (at == std::string::npos) return {};
  return text.substr(at + key.size(), text.find_first_of(" \n", at + key.size()) - at - key.size());
}

}  // namespace accelerate::testing
