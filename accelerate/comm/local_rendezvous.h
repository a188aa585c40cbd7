#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "accelerate/core/deadline.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {

// Note [Local rendezvous]
// mpirun and srun tell a rank its number but no address. On one machine the ranks find each other through a
// socket in Linux's abstract namespace, named after the user and the job: it needs no file, can't be left
// behind by a killed process, and the kernel tells each side the other's user id. Rank 0 binds a free TCP
// port on the loopback device, and hands its number to each rank that asks.

/// Rank 0's side: owns the TCP socket that the store will listen on, and answers the other ranks in the
/// background.
class LocalRendezvousServer {
 public:
  /// @throws CommError when the name is taken (another job with this id) or no port can be bound.
  LocalRendezvousServer(const std::string& job_id, int peers, Deadline deadline);
  /// Stops answering; waits for the thread, which reacts at once.
  ~LocalRendezvousServer();
  LocalRendezvousServer(const LocalRendezvousServer&) = delete;
  LocalRendezvousServer& operator=(const LocalRendezvousServer&) = delete;

  uint16_t port() const { return port_; }
  /// Gives the bound, listening TCP socket away.
  int release_listen_fd() { return listen_fd_.release(); }

 private:
  void serve(int peers, Deadline deadline);

  uint16_t port_ = 0;  // before the socket, whose making sets it
  UniqueFd listen_fd_;
  UniqueFd name_fd_;
  UniqueFd stop_fd_;
  std::thread thread_;
};

/// The other ranks' side: asks rank 0 for its port, again and again until it answers.
/// @throws CommError naming rank 0 when the deadline passes.
uint16_t ask_local_rendezvous(const std::string& job_id, int rank, Deadline deadline);

}  // namespace accelerate
