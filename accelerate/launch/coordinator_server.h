#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "accelerate/core/unique_fd.h"
#include "accelerate/launch/coordinator.h"
#include "accelerate/launch/line_socket.h"
#include "accelerate/launch/net_address.h"

namespace accelerate::detail {

/// The coordinator with its sockets, in a thread of its own: it has to answer even while the launcher waits
/// for a stalled terminal.
class CoordinatorServer {
 public:
  /// `listener` as listen_at() makes it. `options.open_store` is set by the server.
  CoordinatorServer(UniqueFd listener, CoordinatorOptions options);
  /// Ends the job on all machines if it still runs. Takes two seconds at most.
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  /// The listening socket of the attempt's store; once.
  UniqueFd take_store_socket(int attempt);

 private:
  using Clock = Coordinator::Clock;
  struct Peer {
    LineSocket socket;
    std::string reached_at;
    Clock::time_point hello_until{};
    bool broken = false;
    bool closing = false;  ///< nothing more is read from it or queued for it
    bool half_closed = false;
    Clock::time_point close_at{};
  };

  int open_store(int attempt);
  void serve();
  void turn();
  void accept_all();
  void read_from(Coordinator::Connection id, Peer& peer);
  void deliver();
  void close_ended();
  int timeout_ms() const;

  UniqueFd listener_;
  UniqueFd wake_;
  std::atomic<bool> leave_{false};
  std::mutex mutex_;
  std::map<int, UniqueFd> stores_;  ///< under mutex_
  Coordinator coordinator_;         ///< of the thread
  std::map<Coordinator::Connection, Peer> peers_;
  Coordinator::Connection next_id_ = 0;
  std::thread thread_;
};

}  // namespace accelerate::detail
