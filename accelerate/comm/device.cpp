#include "accelerate/comm/device.h"

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#ifdef ACCELERATE_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace accelerate {
namespace {

int cuda_device_count() {
#ifdef ACCELERATE_WITH_CUDA
  return c10::cuda::device_count();
#else
  return 0;
#endif
}

void make_current(at::Device device) {
#ifdef ACCELERATE_WITH_CUDA
  if (device.is_cuda()) c10::cuda::set_device(device.index());
#endif
}

at::Device named_device(const std::string& name, const Topology& topology) {
  try {
    at::Device device(name);
    if (device.is_cuda() && cuda_device_count() == 0) throw std::runtime_error("no CUDA device");
    if (!device.is_cpu() && !device.has_index()) {
      device.set_index(static_cast<c10::DeviceIndex>(topology.local_rank));
    }
    make_current(device);
    return device;
  } catch (const std::exception&) {
    throw ConfigError({.what = "ACCELERATE_TORCH_DEVICE",
                       .expected = "a device such as cpu, cuda or cuda:0 that is there",
                       .got = concat("'", name, "'"),
                       .rank = topology.rank});
  }
}

}  // namespace

at::Device choose_device(const DeviceRequest& request, const Topology& topology) {
  if (request.name) return named_device(*request.name, topology);
  if (request.cpu) return at::kCPU;
  const int count = cuda_device_count();
  if (count == 0 && request.cuda_required) {
    throw ConfigError(
        {.what = "the configuration asks for GPUs, and no CUDA device was found",
         .hint = "Use --cpu (or use_cpu: true), or the CUDA variant of the library on a machine with a "
                 "GPU.",
         .rank = topology.rank});
  }
  if (count == 0) return at::kCPU;
  if (topology.local_rank >= count) {
    throw ConfigError({.what = "GPUs on this machine",
                       .expected = concat(topology.local_world_size, ", one for every local rank"),
                       .got = std::to_string(count),
                       .hint = "Start fewer processes, or use --cpu.",
                       .rank = topology.rank});
  }
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(topology.local_rank));
  make_current(device);
  return device;
}

}  // namespace accelerate
