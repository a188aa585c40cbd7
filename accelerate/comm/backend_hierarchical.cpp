// How the three groups of Note [Several machines] come about.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/agreement.h"
#include "accelerate/comm/backends.h"
#include "accelerate/comm/hierarchical_backend_internal.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

BackendRequest part_of(const BackendRequest& request, const std::string& name, int rank, int size) {
  BackendRequest part = request;
  part.store = c10::make_intrusive<c10d::PrefixStore>(name, request.store);
  part.rank = rank;
  part.size = size;
  return part;
}

// Ranks must be numbered machine by machine, equally many on each.
std::string layout_problem(const BackendRequest& request) {
  if (request.num_nodes < 2) return "all ranks are on one machine";
  if (request.local_size * request.num_nodes != request.size ||
      request.rank != request.node_rank * request.local_size + request.local_rank) {
    return concat("is number ", request.local_rank, " of ", request.local_size, " on machine ",
                  request.node_rank, " of ", request.num_nodes,
                  ", so that ranks are not numbered machine by machine, equally many on each");
  }
  if (request.local_size == 1) return "there is one rank on each machine";
  return "";
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(const BackendRequest& request) {
  const Deadline deadline = Deadline::after(request.timeout);
  Store store(request.store);
  const auto agree = [&](const char* topic, const std::string& problem, const char* hint) {
    const std::string verdict = first_problem(store, request.rank, request.size, topic, problem, deadline);
    if (verdict.empty()) return;
    throw BackendUnavailable({.what = "the ranks can't use shared memory and gloo together",
                              .got = verdict,
                              .hint = hint,
                              .rank = request.rank});
  };
  agree("layout", layout_problem(request), "Take the back end 'gloo', or 'shm' on one machine.");
  HierarchicalBackend::Inner local;
  std::string problem;
  try {
    local = make_shm_backend(
        part_of(request, concat("machine/", request.node_rank), request.local_rank, request.local_size));
  } catch (const BackendUnavailable& error) {
    problem = one_line(error);
  }
  agree("shared_memory", problem,
        "Make /dev/shm larger (mount -o remount,size=... /dev/shm; docker run --shm-size=...), or take the "
        "back end 'gloo'.");
  auto across = make_gloo_backend(
      part_of(request, concat("across/", request.local_rank), request.node_rank, request.num_nodes));
  auto all = make_gloo_backend(part_of(request, "all", request.rank, request.size));
  const MachineLayout layout{.machine = request.node_rank,
                             .machines = request.num_nodes,
                             .local_rank = request.local_rank,
                             .local_size = request.local_size};
  return c10::make_intrusive<HierarchicalBackend>(layout, std::move(local), std::move(across),
                                                  std::move(all));
}

}  // namespace accelerate::detail
