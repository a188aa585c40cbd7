#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// Where this process stands in its job, as its launcher told it.
struct Topology {
  /// Which launcher: "accel", "torchrun", "open_mpi", "slurm" or "plain" (started by hand, alone).
  std::string launcher = "plain";
  int rank = 0;              ///< global rank, 0 to world_size - 1
  int world_size = 1;        ///< ranks in the whole job
  int local_rank = 0;        ///< rank among those of this machine
  int local_world_size = 1;  ///< ranks on this machine
  int node_rank = 0;         ///< number of this machine
  int num_nodes = 1;         ///< machines in the job

  /// Where rank 0's store listens. The port is 0 when the launcher gave none (mpirun, srun on one machine):
  /// the local ranks then agree on a free one among themselves.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// A listening socket for the store that rank 0 inherited from the launcher.
  std::optional<int> listen_fd = std::nullopt;
  /// The launcher's own process serves the store, and every rank is a client (torchrun's agent store).
  bool agent_store = false;
  /// Times that all ranks were restarted so far.
  int restart_count = 0;
  /// Equal on all ranks that share a machine and a launcher, and different for any two jobs of a user on a
  /// machine and for two launchers of one job. Letters, digits, '-', '_', '.'; used in the names of
  /// shared-memory segments.
  std::string job_id;
};

}  // namespace accelerate
