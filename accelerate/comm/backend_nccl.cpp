// CUDA variant only.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerate/comm/backends.h"

namespace accelerate::detail {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(request.device_index)));
  return backend;
}

}  // namespace accelerate::detail
