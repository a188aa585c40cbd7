// How the ranks of a group meet over MPI.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/mpi/group.h"
#include "accelerate/comm/mpi_backend_internal.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/env_vars.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

std::string how_to_start(int size) {
  return concat("Start it with: mpirun -n ", size, " ./train, or accel launch --cpu --num_processes ", size,
                " --mpirun_hostfile FILE ./train. Or take the back end 'gloo'.");
}

// MPI_Init in a process that mpirun did not start makes a world of one, at best.
void check_start(const BackendRequest& request, const EnvVars& variables) {
  if (mpi::started_by_program()) return;
  const auto size = variables.get_int(variables::kOmpiSize);
  if (!size && !variables.get(variables::kPmixNamespace)) {
    throw ConfigError({.what = concat("the back end mpi with ", request.size, " ranks"),
                       .expected = "processes that mpirun has started",
                       .got = "one that was started in another way",
                       .hint = how_to_start(request.size),
                       .rank = request.rank});
  }
}

void check_place(const BackendRequest& request, const mpi::Place& world) {
  const bool fits = request.whole_job ? world.size == request.size && world.rank == request.rank
                                      : world.size >= request.size;
  if (fits) return;
  throw ConfigError({.what = "the ranks of MPI and those of the job differ",
                     .expected = concat("rank ", request.rank, " of ", request.size, " in MPI_COMM_WORLD"),
                     .got = concat("rank ", world.rank, " of ", world.size),
                     .hint = how_to_start(request.size),
                     .rank = request.rank});
}

class Meeting {
 public:
  explicit Meeting(const BackendRequest& request)
      : request_(request), store_(request.store), deadline_(Deadline::after(request.timeout)) {}

  /// Runs `action` on every rank and returns what it says on each, in rank order. Where one throws, it throws
  /// that, and the others an error that repeats it: nobody waits for who will not come.
  std::vector<std::string> agree(const std::string& stage, const std::function<std::string()>& action) {
    std::string mine;
    std::exception_ptr error;
    try {
      mine = concat("+", action());
    } catch (const Error& problem) {
      mine = concat("-rank ", request_.rank, ": ", problem.text().what);
      error = std::current_exception();
    }
    std::vector<std::string> all;
    try {
      all = exchange(stage, mine);
    } catch (const std::exception&) {
      if (error) std::rethrow_exception(error);
      throw;
    }
    if (error) std::rethrow_exception(error);
    for (std::string& text : all) {
      if (text.starts_with('-'))
        throw CommError(
            {.what = concat("no group over MPI: ", text.substr(1)), .rank = request_.rank, .echo = true});
      text.erase(0, 1);
    }
    return all;
  }

  const Deadline& deadline() const { return deadline_; }

 private:
  // Rank 0 hears all and tells all.
  std::vector<std::string> exchange(const std::string& stage, const std::string& mine) {
    const std::string key = stage + "/all";
    if (request_.rank > 0) {
      store_.set(concat(stage, "/", request_.rank), mine);
      return split(wait_for(key, 0), '\n');
    }
    std::vector<std::string> all = {mine};
    for (int rank = 1; rank < request_.size; ++rank) {
      all.push_back(wait_for(concat(stage, "/", rank), rank));
    }
    store_.set(key, join(all, "\n"));
    return all;
  }

  std::string wait_for(const std::string& key, int rank) {
    const auto value = store_.get(key, deadline_.remaining());
    if (!value) {
      throw CommError({.what = concat("rank ", rank, " did not come to MPI within ",
                                      static_cast<double>(deadline_.duration().count()) / 1000.0, " s"),
                       .rank = request_.rank});
    }
    return *value;
  }

  const BackendRequest& request_;
  Store store_;
  Deadline deadline_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const BackendRequest& request, size_t largest_count) {
  Meeting meeting(request);
  // Before MPI_Init, in which the ranks wait for one another.
  meeting.agree("start", [&] {
    check_start(request, EnvVars::from_process());
    return std::string();
  });
  const auto world_ranks = meeting.agree("place", [&] {
    const mpi::Place world = mpi::start(meeting.deadline());
    check_place(request, world);
    if (request.cuda && !mpi::is_cuda_aware()) {
      throw ConfigError({.what = "the back end mpi for CUDA devices",
                         .expected = "an Open MPI that was built --with-cuda",
                         .got = "one without",
                         .hint = "Take the back end 'nccl', or run on the CPU.",
                         .rank = request.rank});
    }
    return std::to_string(world.rank);
  });
  mpi::GroupOptions options{.world_ranks = {}, .rank = request.rank, .largest_count = largest_count};
  for (const std::string& rank : world_ranks) {
    options.world_ranks.push_back(static_cast<int>(parse_int(rank).value_or(0)));
  }
  return c10::make_intrusive<MpiBackend>(std::make_unique<mpi::Group>(options, meeting.deadline()), request);
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const BackendRequest& request) {
  return make_mpi_backend(request, mpi::GroupOptions().largest_count);
}

}  // namespace accelerate::detail
