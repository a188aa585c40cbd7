#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/comm/shm/reduce.h"
#include "accelerate/core/deadline.h"

namespace accelerate::mpi {

// Note [The progress thread of MPI]
// MPI is one for the whole process: it starts once, ends once and never starts again. One thread of ours
// makes every call of MPI, from MPI_Init_thread to MPI_Finalize, so that any level of threading that a
// library grants will do. Operations are non-blocking calls that this thread starts in the order in which
// they were asked for and then tests again and again; where nothing happens it sleeps between tests, at first
// for microseconds. That is what gives every wait a deadline, which MPI itself does not know: a peer that is
// stuck or gone looks to MPI like one that is late.
//
// An operation whose deadline passes ends with an error, and with it all others of its group, since MPI can't
// take a collective back. Its requests and its memory are kept for as long as the process lives: MPI may
// still write there.
//
// The process leaves MPI when it exits with status 0 and no group has failed: all ranks say good-bye by a
// non-blocking barrier, again with a deadline, then MPI_Finalize is called. A process that exits with another
// status leaves without a word, since its peers may be stuck in a collective and would never come to
// MPI_Finalize; mpirun sees the status and ends them. Where the program itself called MPI_Init_thread,
// MPI_Finalize is left to it.

using shm::Element;
using shm::Reduction;

inline constexpr int kAnySource = -1;

/// A rank and the number of ranks.
struct Place {
  int rank = 0;
  int size = 1;
};

/// Collective over the processes that mpirun started. Starts MPI, or finds that the program did.
/// @return this process in MPI_COMM_WORLD.
/// @throws ConfigError if the program started MPI without MPI_THREAD_MULTIPLE or has already ended it;
/// shm::PeerError when the others do not start it before the deadline.
Place start(const Deadline& deadline);

/// True if the program has started MPI by itself. Before start().
bool started_by_program();

/// True if this MPI moves the memory of CUDA devices. After start().
bool is_cuda_aware();

struct Posted;

/// What one operation asks of MPI; made for the callback of Group::run(). Every call returns at once. Memory
/// must stay until the operation is done. `from` and `to` do not overlap.
class Calls {
 public:
  explicit Calls(Posted& posted) : posted_(posted) {}

  /// In place. Elements of half precision are reduced in float, pair by pair.
  void all_reduce(void* data, size_t count, Element element, Reduction reduction);
  /// `to` is written on the root only.
  void reduce(const void* from, void* to, size_t count, Element element, Reduction reduction, int root);
  /// `from` holds as many parts of `count` elements as there are ranks.
  void reduce_scatter(const void* from, void* to, size_t count, Element element, Reduction reduction);
  void broadcast(void* data, size_t bytes, int root);
  /// `to` holds `bytes` from each rank.
  void all_gather(const void* from, void* to, size_t bytes);
  void barrier();

  /// Messages of users, with tags from 0 to what this MPI has. Empty ones are sent too.
  void send(const void* data, size_t bytes, int peer, int tag);
  void receive(void* data, size_t bytes, int peer_or_any, int tag);
  /// Parts of collectives between two ranks, which users' messages do not disturb. None for 0 bytes.
  void send_part(const void* data, size_t bytes, int peer);
  void receive_part(void* data, size_t bytes, int peer);

 private:
  Posted& posted_;
};

struct GroupOptions {
  /// The members, as numbered in MPI_COMM_WORLD, in rank order.
  std::vector<int> world_ranks;
  int rank = 0;
  /// Elements, or bytes, in one call of MPI, whose counts have 32 bits; longer ones are split.
  size_t largest_count = size_t{1} << 30;
};

struct Comm;

/// Ranks that talk over a communicator of their own. Calls may come from any thread, in the same order on all
/// ranks.
class Group {
 public:
  /// Error, or null; and whom a message came from.
  using Done = std::function<void(const std::exception_ptr& error, int source)>;

  /// Collective over the members, who make their groups in the same order.
  /// @throws shm::PeerError when they do not come before the deadline.
  Group(const GroupOptions& options, const Deadline& deadline);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Runs `calls` and later `done` on the progress thread; `done` exactly once. `name` is for errors. What
  /// the two callbacks hold lives until MPI no longer needs it.
  void run(std::string name, std::chrono::milliseconds timeout, std::function<void(Calls&)> calls, Done done);
  /// As run() for a message: when it is late, the group goes on.
  void run_message(std::string name, std::chrono::milliseconds timeout, std::function<void(Calls&)> calls,
                   Done done);

 private:
  std::shared_ptr<Comm> comm_;
};

}  // namespace accelerate::mpi
