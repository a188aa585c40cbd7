// CUDA variant only.
#include <cstring>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr int kMostCtas = 64;
constexpr int kLargestCluster = 8;

void check_range(const char* name, const std::optional<int>& value, int least, int most, int rank) {
  if (!value || (*value >= least && *value <= most)) return;
  throw ConfigError({.what = concat(name, " (NcclOptions)"),
                     .expected = concat("a number from ", least, " to ", most),
                     .got = std::to_string(*value),
                     .rank = rank});
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  const NcclOptions& wanted = request.nccl;
  auto options = c10d::ProcessGroupNCCL::Options::create(wanted.high_priority_stream);
  options->timeout = request.timeout;
  check_range("min_ctas", wanted.min_ctas, 1, kMostCtas, request.rank);
  check_range("max_ctas", wanted.max_ctas, wanted.min_ctas.value_or(1), kMostCtas, request.rank);
  check_range("cga_cluster_size", wanted.cga_cluster_size, 0, kLargestCluster, request.rank);
  if (wanted.min_ctas) options->config.minCTAs = *wanted.min_ctas;
  if (wanted.max_ctas) options->config.maxCTAs = *wanted.max_ctas;
  if (wanted.cga_cluster_size) options->config.cgaClusterSize = *wanted.cga_cluster_size;
  // NCCL reads the name when the first collective makes its communicator, and frees none of it.
  if (wanted.net_name) options->config.netName = ::strdup(wanted.net_name->c_str());
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(request.device_index)));
  return backend;
}

}  // namespace accelerate::detail
