#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "accelerate/core/unique_fd.h"
#include "accelerate/launch/line_socket.h"
#include "accelerate/launch/machine_message.h"

namespace accelerate::detail {

struct AgentOptions {
  std::string address;  ///< of the coordinator
  int port = 0;
  MachineMessage hello;
  std::chrono::milliseconds connect_timeout{300000};
  /// Until the coordinator says which one holds.
  std::chrono::milliseconds heartbeat_timeout{5000};
};

/// The connection of this machine's launcher to the coordinator, kept alive by a thread of its own, so that a
/// launcher that waits for a stalled terminal does not look dead. All methods are for one other thread.
class AgentLink {
 public:
  explicit AgentLink(AgentOptions options);
  /// Sends what is left and closes, within a second (a name server that does not answer aside).
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Readable when next() has something.
  int fd() const { return news_.get(); }
  /// What came from the coordinator. However the connection ends, the last message is a kEnd, and if the
  /// coordinator did not send it then its text says what happened.
  std::optional<MachineMessage> next();
  void send(const MachineMessage& message);

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  UniqueFd connect();
  bool talk(LineSocket& socket);
  bool handle(const MachineMessage& message);
  void send_queued(LineSocket& socket);
  void farewell(LineSocket& socket);
  void post(MachineMessage message);
  void post_status(std::string text);
  void post_end(int code, std::string text);
  void pause(std::chrono::milliseconds duration);
  std::string coordinator_name() const;

  AgentOptions options_;
  UniqueFd news_;
  UniqueFd wake_;
  std::atomic<bool> leave_{false};
  std::mutex mutex_;
  std::deque<MachineMessage> inbox_;   ///< under mutex_
  std::deque<MachineMessage> outbox_;  ///< under mutex_

  // Of the thread.
  Clock::time_point connect_until_;
  Clock::time_point next_status_;
  std::string coordinator_host_;  ///< empty until welcomed
  std::thread thread_;
};

}  // namespace accelerate::detail
