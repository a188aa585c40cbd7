#include "accelerate/comm/backends.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate::detail {

const std::vector<BackendInfo>& backends() {
  static const std::vector<BackendInfo> all = {
      {"gloo", c10::DeviceType::CPU, make_gloo_backend},
      {"shm", c10::DeviceType::CPU, make_shm_backend},
      {"hierarchical", c10::DeviceType::CPU, make_hierarchical_backend},
#ifdef ACCELERATE_WITH_MPI
      {"mpi", c10::DeviceType::CPU, make_mpi_backend},
#endif
#ifdef ACCELERATE_WITH_CUDA
      {"nccl", c10::DeviceType::CUDA, make_nccl_backend},
#endif
  };
  return all;
}

const BackendInfo* find_backend(const std::string& name) {
  for (const BackendInfo& info : backends()) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

}  // namespace accelerate::detail
