#include "accelerate/comm/communicator.h"

#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/comm/c10d_communicator.h"
#include "accelerate/comm/local_rendezvous.h"
#include "accelerate/comm/single_communicator.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// Note [One store a process]
// A process has one connection to its job's store, and rank 0 serves it, on a socket that the launcher may
// have bound. A second Accelerator in the process, or one after another, can't connect afresh: the socket is
// in use, and keys of the first are still there. So the store is kept for as long as the process lives, and
// every communicator on it works under a prefix of its own, counted alike on all ranks. It is never
// destroyed: its threads must not be ended while other static objects already are.
struct JobStore {
  c10::intrusive_ptr<c10d::Store> store;
  int64_t communicators = 0;
};

struct JobStores {
  std::mutex mutex;
  std::map<std::string, JobStore> by_rank;
};

JobStores& job_stores() {
  static auto* stores = new JobStores;
  return *stores;
}

// `meeting` must stay alive until all ranks have come.
c10::intrusive_ptr<c10d::Store> make_tcp_store(const Topology& topology, const CommunicatorOptions& options,
                                               std::unique_ptr<LocalRendezvousServer>& meeting) {
  c10d::TCPStoreOptions store_options;
  store_options.isServer = topology.rank == 0 && !topology.agent_store;
  store_options.numWorkers = static_cast<size_t>(topology.world_size);
  store_options.waitWorkers = false;  // wait_for_ranks does, and names who is missing
  store_options.timeout = options.timeout;
  std::string host = topology.master_addr;
  int port = topology.master_port;
  if (port == 0) {
    const Deadline deadline = Deadline::after(options.timeout);
    host = "127.0.0.1";
    if (topology.rank == 0) {
      meeting = std::make_unique<LocalRendezvousServer>(topology.job_id, topology.world_size - 1, deadline);
      port = meeting->port();
      store_options.masterListenFd = meeting->release_listen_fd();
    } else {
      port = ask_local_rendezvous(topology.job_id, topology.rank, deadline);
    }
  } else if (topology.listen_fd) {
    store_options.masterListenFd = *topology.listen_fd;
  }
  store_options.port = static_cast<uint16_t>(port);
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(host, store_options);
  } catch (const std::exception& error) {
    throw CommError(
        {.what = concat("the store of the job at ", host, ":", port,
                        store_options.isServer ? " can't be served" : " can't be reached"),
         .got = std::string(error.what()).substr(0, 300),
         .hint = "Check MASTER_ADDR and MASTER_PORT: rank 0 must run on that machine, and the port must "
                 "be free there.",
         .rank = topology.rank});
  }
  if (topology.agent_store) {
    // torchrun's agent keeps one store over restarts; workers of one attempt share a prefix, as torch's own
    // do.
    store = c10::make_intrusive<c10d::PrefixStore>(concat("/worker/attempt_", topology.restart_count), store);
  }
  return store;
}

// `whole_job`: the ranks are all those of the job that the process was started in.
std::shared_ptr<Communicator> make_group(Store store, const Topology& topology, bool whole_job,
                                         const CommunicatorOptions& options, Logger& logger) {
  if (topology.world_size == 1) return detail::make_single_communicator(options.timeout);
  const detail::BackendRequest request{
      .store = store.c10d_store(),
      .rank = topology.rank,
      .size = topology.world_size,
      .timeout = options.timeout,
      .loopback = topology.num_nodes == 1,
      .one_machine = topology.local_world_size == topology.world_size,
      .master_addr = topology.master_addr,
      .node_rank = topology.node_rank,
      .num_nodes = topology.num_nodes,
      .local_rank = topology.local_rank,
      .local_size = topology.local_world_size,
      .device_index = options.device.has_index() ? options.device.index() : 0,
      .whole_job = whole_job,
      .job_id = topology.job_id.empty() ? "group" : topology.job_id};
  return detail::make_c10d_communicator(std::move(store), request, options, logger);
}

}  // namespace

std::shared_ptr<Communicator> make_communicator(const Topology& topology, const CommunicatorOptions& options,
                                                Logger& logger) {
  if (topology.world_size == 1) return detail::make_single_communicator(options.timeout);
  std::unique_ptr<LocalRendezvousServer> meeting;
  c10::intrusive_ptr<c10d::Store> store;
  {
    JobStores& stores = job_stores();
    const std::string key = concat(topology.job_id, " ", topology.master_addr, " ", topology.master_port, " ",
                                   topology.restart_count, " ", topology.rank);
    std::unique_lock lock(stores.mutex);
    const bool is_new = !stores.by_rank.contains(key);
    lock.unlock();  // ranks that are threads must be able to meet each other
    c10::intrusive_ptr<c10d::Store> fresh;
    if (is_new) fresh = make_tcp_store(topology, options, meeting);
    lock.lock();
    JobStore& job = stores.by_rank[key];
    if (is_new) job.store = fresh;
    store = c10::make_intrusive<c10d::PrefixStore>(concat("communicator/", job.communicators++), job.store);
  }
  return make_communicator(Store(store), topology, options, logger);
}

std::shared_ptr<Communicator> make_communicator(Store store, const Topology& topology,
                                                const CommunicatorOptions& options, Logger& logger) {
  return make_group(std::move(store), topology, /*whole_job=*/true, options, logger);
}

std::shared_ptr<Communicator> make_communicator(Store store, int rank, int size, bool loopback,
                                                const CommunicatorOptions& options, Logger& logger) {
  const Topology topology{.rank = rank,
                          .world_size = size,
                          .local_rank = loopback ? rank : 0,
                          .local_world_size = loopback ? size : 1,
                          .node_rank = loopback ? 0 : rank,
                          .num_nodes = loopback ? 1 : size,
                          .job_id = {}};
  return make_group(std::move(store), topology, /*whole_job=*/false, options, logger);
}

Store make_in_memory_store() {
  return Store(c10::make_intrusive<c10d::HashStore>());
}

}  // namespace accelerate
