#pragma once

#include <memory>

#include "accelerate/environment/registry.h"

// One function an environment, each in the file of its name. Internal to this folder.

namespace accelerate::detail {

std::unique_ptr<Environment> make_accel_environment();
std::unique_ptr<Environment> make_torchrun_environment();
std::unique_ptr<Environment> make_open_mpi_environment();
std::unique_ptr<Environment> make_slurm_environment();
std::unique_ptr<Environment> make_plain_environment();

}  // namespace accelerate::detail
