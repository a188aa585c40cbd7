#pragma once

// The name of every environment variable that the library reads or writes for finding out where a process
// stands in its job. Nothing else spells one of them out.

namespace accelerate::variables {

// torchrun's names, which `accel launch`, torchrun and Kubernetes' PyTorchJob all set.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kGroupRank = "GROUP_RANK";             ///< number of this machine
inline constexpr const char* kGroupWorldSize = "GROUP_WORLD_SIZE";  ///< machines in the job
inline constexpr const char* kMasterAddr = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";
inline constexpr const char* kTorchElasticRunId = "TORCHELASTIC_RUN_ID";
inline constexpr const char* kTorchElasticRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* kTorchElasticMaxRestarts = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr const char* kTorchElasticUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";
inline constexpr const char* kTorchElasticErrorFile = "TORCHELASTIC_ERROR_FILE";

// Ours.
inline constexpr const char* kPrefix = "ACCELERATE_";
inline constexpr const char* kLauncher = "ACCELERATE_LAUNCHER";  ///< "accel" in every rank of `accel launch`
inline constexpr const char* kJobId = "ACCELERATE_JOB_ID";       ///< Topology::job_id
inline constexpr const char* kListenFd =
    "ACCELERATE_LISTEN_FD";  ///< Topology::listen_fd, only in the rank that serves
/// Port of the store that kListenFd belongs to; MASTER_PORT is left to the program's own use.
inline constexpr const char* kStorePort = "ACCELERATE_STORE_PORT";
/// Name of a job that `accel launch` started through mpirun, in mpirun and in all that it starts.
inline constexpr const char* kMpirunJob = "ACCELERATE_MPIRUN_JOB";
/// "1" in every rank whose output `accel launch` shows on a terminal: progress bars make sense there.
inline constexpr const char* kTerminal = "ACCELERATE_TERMINAL";
inline constexpr const char* kLogLevel = "ACCELERATE_LOG_LEVEL";

// Set by Kubernetes operators and by many job scripts, for launchers rather than ranks.
inline constexpr const char* kNodeRank = "NODE_RANK";

// Set by Kubernetes' PyTorchJob for torchrun, which takes PET_X for its flag --x; and by Kubernetes in every
// pod.
inline constexpr const char* kPetNnodes = "PET_NNODES";
inline constexpr const char* kPetNprocPerNode = "PET_NPROC_PER_NODE";
inline constexpr const char* kPetNodeRank = "PET_NODE_RANK";
inline constexpr const char* kPetMasterAddr = "PET_MASTER_ADDR";
inline constexpr const char* kPetMasterPort = "PET_MASTER_PORT";
inline constexpr const char* kPetRdzvEndpoint = "PET_RDZV_ENDPOINT";
inline constexpr const char* kPetRdzvBackend = "PET_RDZV_BACKEND";
inline constexpr const char* kPetRdzvId = "PET_RDZV_ID";
inline constexpr const char* kPetMaxRestarts = "PET_MAX_RESTARTS";
inline constexpr const char* kKubernetesHost = "KUBERNETES_SERVICE_HOST";

// Threads and devices.
inline constexpr const char* kOmpNumThreads = "OMP_NUM_THREADS";
inline constexpr const char* kCudaVisibleDevices = "CUDA_VISIBLE_DEVICES";

// Open MPI (orte in release 4, PMIx in both 4 and 5).
inline constexpr const char* kOmpiRank = "OMPI_COMM_WORLD_RANK";
inline constexpr const char* kOmpiSize = "OMPI_COMM_WORLD_SIZE";
inline constexpr const char* kOmpiLocalRank = "OMPI_COMM_WORLD_LOCAL_RANK";
inline constexpr const char* kOmpiLocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
inline constexpr const char* kOmpiNumNodes = "OMPI_MCA_orte_num_nodes";
inline constexpr const char* kOmpiJobId = "OMPI_MCA_ess_base_jobid";
inline constexpr const char* kOmpiTransportKey =
    "OMPI_MCA_orte_precondition_transports";  ///< random, one a job
inline constexpr const char* kPmixNamespace = "PMIX_NAMESPACE";

// Slurm, inside a step started by srun.
inline constexpr const char* kSlurmJobId = "SLURM_JOB_ID";
inline constexpr const char* kSlurmStepId = "SLURM_STEP_ID";
inline constexpr const char* kSlurmProcId = "SLURM_PROCID";
inline constexpr const char* kSlurmLocalId = "SLURM_LOCALID";
inline constexpr const char* kSlurmNodeId = "SLURM_NODEID";
inline constexpr const char* kSlurmStepNumTasks = "SLURM_STEP_NUM_TASKS";
inline constexpr const char* kSlurmStepNumNodes = "SLURM_STEP_NUM_NODES";
inline constexpr const char* kSlurmStepTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";
inline constexpr const char* kSlurmStepNodeList = "SLURM_STEP_NODELIST";
inline constexpr const char* kSlurmRestartCount = "SLURM_RESTART_COUNT";

// Read by the launcher.
inline constexpr const char* kPath = "PATH";

}  // namespace accelerate::variables
