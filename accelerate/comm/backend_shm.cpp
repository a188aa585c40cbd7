// How the ranks of a group meet in a segment.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/shm_backend_internal.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

// Values in the store: '+' and a path or nothing, or '-' and what went wrong.
std::string well(const std::string& text = {}) {
  return "+" + text;
}
std::string problem(int rank, const Error& error) {
  return concat("-rank ", rank, ": ", error.text().what,
                error.text().got.empty() ? "" : concat(" (", error.text().got, ")"));
}
bool is_well(const std::string& value) {
  return value.starts_with('+');
}

class Meeting {
 public:
  explicit Meeting(const BackendRequest& request)
      : request_(request), store_(request.store), deadline_(Deadline::after(request.timeout)) {}

  /// The segment, attached by every rank and nameless again.
  /// @throws BackendUnavailable on all ranks, if one of them can't reach it.
  SharedMemoryMapping segment(const shm::GroupOptions& options) {
    const size_t bytes = shm::Group::segment_bytes(options);
    std::unique_ptr<SharedMemorySegment> builder;
    SharedMemoryMapping mapping;
    std::string mine = well();
    if (request_.rank == 0) {
      sweep_shared_memory();
      try {
        builder = std::make_unique<SharedMemorySegment>(options.job_id, bytes);
        mapping = builder->map_writable();
        store_.set("segment", well(builder->publish()));
      } catch (const DataError& error) {
        mine = problem(0, error);
        store_.set("segment", mine);
      }
    } else {
      const std::string path = wait_for("segment", 0);
      if (is_well(path)) {
        try {
          mapping = attach_shared_memory_writable(path.substr(1), bytes);
        } catch (const DataError& error) {
          mine = problem(request_.rank, error);
        }
      }
    }
    const std::string verdict = agree(mine);
    if (!is_well(verdict)) {
      throw BackendUnavailable(
          {.what = "the ranks can't share memory",
           .got = verdict.substr(1),
           .hint = "Make /dev/shm larger (mount -o remount,size=... /dev/shm; docker run --shm-size=...), or "
                   "take the back end 'gloo'.",
           .rank = request_.rank});
    }
    return mapping;
  }

 private:
  // Rank 0 hears all and says what holds for all.
  std::string agree(const std::string& mine) {
    if (request_.rank > 0) {
      store_.set(concat("attached/", request_.rank), mine);
      return wait_for("verdict", 0);
    }
    std::string verdict = mine;
    for (int rank = 1; rank < request_.size; ++rank) {
      const std::string theirs = wait_for(concat("attached/", rank), rank);
      if (is_well(verdict) && !is_well(theirs)) verdict = theirs;
    }
    store_.set("verdict", verdict);
    return verdict;
  }

  std::string wait_for(const std::string& key, int rank) {
    const auto value = store_.get(key, deadline_.remaining());
    if (!value) {
      throw CommError({.what = concat("rank ", rank, " did not come to share memory within ",
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

c10::intrusive_ptr<c10d::Backend> make_shm_backend(const BackendRequest& request) {
  const shm::GroupOptions options{.rank = request.rank,
                                  .size = request.size,
                                  .job_id = request.job_id,
                                  .spin = request.size <= logical_cpus()};
  auto group = std::make_unique<shm::Group>(
      std::make_shared<SharedMemoryMapping>(Meeting(request).segment(options)), options);
  return c10::make_intrusive<ShmBackend>(std::move(group), request);
}

}  // namespace accelerate::detail
