#pragma once

// The only header that sees mpi.h; the .cpp files of this folder include it.
#include <mpi.h>
// After it, since it builds on it.
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/mpi/group.h"

namespace accelerate::mpi {

/// One group's communicator. Used on the progress thread.
struct Comm {
  MPI_Comm handle = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  size_t largest_count = 0;
  int part_tag = 32767;  ///< the largest tag that this MPI has; users' are below it
  std::string broken;    ///< why nothing can be done with it any more
};

/// A call that MPI has not answered yet.
struct Pending {
  MPI_Request request = MPI_REQUEST_NULL;
  std::optional<size_t> receives = std::nullopt;  ///< bytes that are expected
};

/// The calls of one operation.
struct Posted {
  Comm* comm = nullptr;
  std::vector<Pending> pending = {};
  int source = -1;
};

/// @throws shm::PeerError with MPI's text unless `result` is MPI_SUCCESS.
void check(int result, const char* call);

/// Frees the operations of ours.
void free_operations();

}  // namespace accelerate::mpi
