// How the ranks of a group meet in a segment.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/agreement.h"
#include "accelerate/comm/backends.h"
#include "accelerate/comm/shm_backend_internal.h"
#include "accelerate/comm/store.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

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
    std::string problem;
    if (request_.rank == 0) {
      sweep_shared_memory();
      std::string path;
      try {
        builder = std::make_unique<SharedMemorySegment>(options.job_id, bytes);
        mapping = builder->map_writable();
        path = builder->publish();
      } catch (const DataError& error) {
        problem = one_line(error);
      }
      store_.set("segment", "=" + path);
    } else {
      const auto path = store_.get("segment", deadline_.remaining());
      if (!path) {
        throw CommError({.what = concat("rank 0 did not come to share memory within ",
                                        static_cast<double>(deadline_.duration().count()) / 1000.0, " s"),
                         .rank = request_.rank});
      }
      if (path->size() > 1) {
        try {
          mapping = attach_shared_memory_writable(path->substr(1), bytes);
        } catch (const DataError& error) {
          problem = one_line(error);
        }
      }
    }
    const std::string verdict =
        first_problem(store_, request_.rank, request_.size, "attached", problem, deadline_);
    if (!verdict.empty()) {
      throw BackendUnavailable(
          {.what = "the ranks can't share memory",
           .got = verdict,
           .hint = "Make /dev/shm larger (mount -o remount,size=... /dev/shm; docker run --shm-size=...), or "
                   "take the back end 'gloo'.",
           .rank = request_.rank});
    }
    return mapping;
  }

 private:
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
