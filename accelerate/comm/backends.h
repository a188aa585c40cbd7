#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/communicator.h"
#include "accelerate/core/error.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accelerate::detail {

/// What a back end needs to start.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  bool loopback = true;          ///< all ranks are on this machine
  bool one_machine = true;       ///< and share its memory
  std::string master_addr = {};  ///< reached from here; tells which network interface faces the other ranks
  int node_rank = 0;             ///< which machine this is, of how many
  int num_nodes = 1;
  int local_rank = 0;  ///< which rank of this machine, of how many
  int local_size = 1;
  int device_index = 0;
  NcclOptions nccl = {};
  bool cuda = false;             ///< tensors of CUDA devices are to travel too
  bool whole_job = false;        ///< rank and size are those of the job
  std::string job_id = "group";  ///< part of the names of shared memory
};

/// A back end can't serve here, which all ranks know: another may be tried in its place.
class BackendUnavailable : public Error {
 public:
  using Error::Error;
};

/// One way to run collectives. Adding one is a file backend_NAME.cpp and a line in backends.cpp.
struct BackendInfo {
  std::string name;
  c10::DeviceType device_type;
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendRequest&)> make;
};

/// The back ends in this build.
const std::vector<BackendInfo>& backends();

/// The entry called `name`, or nothing.
const BackendInfo* find_backend(const std::string& name);

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_shm_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(const BackendRequest& request);
c10::intrusive_ptr<c10d::Backend> make_mpi_backend(const BackendRequest& request);   // builds with MPI only
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request);  // CUDA variant only

}  // namespace accelerate::detail
