#pragma once

#include <string>
#include <vector>

#include "accelerate/core/unique_fd.h"

namespace accelerate::detail {

/// Text lines over a non-blocking socket. Both directions are bounded, so that a peer that talks too much or
/// never reads costs its own connection and no memory of ours.
class LineSocket {
 public:
  explicit LineSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  /// What poll(2) should wait for.
  short events() const;
  /// Adds the complete lines that have come, without their ends. False when no more will come; then reason()
  /// says why.
  bool receive(std::vector<std::string>& lines);
  /// Takes a line for sending; flush() sends what the socket takes.
  void send(const std::string& line);
  /// False when the connection is broken.
  bool flush();
  bool all_sent() const { return out_.empty(); }
  /// Tells the peer that nothing more comes from us.
  void end_sending();

  const std::string& reason() const { return reason_; }

 private:
  UniqueFd fd_;
  std::string in_;
  std::string out_;
  std::string reason_;
};

}  // namespace accelerate::detail
