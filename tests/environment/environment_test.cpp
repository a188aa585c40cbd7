#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"
#include "accelerate/environment/registry.h"
#include "accelerate/environment/slurm.h"
#include "test_support.h"

using namespace accelerate;

namespace {

using Values = std::map<std::string, std::string, std::less<>>;

EnvVars with(Values base, const Values& changes = {}) {
  for (const auto& [name, value] : changes) base[name] = value;
  return EnvVars(std::move(base));
}

EnvVars without(Values base, const std::string& name) {
  base.erase(name);
  return EnvVars(std::move(base));
}

// What `accel launch` gives rank 1 of 2.
const Values kAccel = {{"ACCELERATE_LAUNCHER", "accel"},
                       {"ACCELERATE_JOB_ID", "9e0684c72327d180"},
                       {"TORCHELASTIC_RUN_ID", "9e0684c72327d180"},
                       {"RANK", "1"},
                       {"LOCAL_RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_WORLD_SIZE", "2"},
                       {"GROUP_RANK", "0"},
                       {"GROUP_WORLD_SIZE", "1"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_RESTART_COUNT", "2"}};

// torchrun --no-python --nproc_per_node 2 env, torch 2.11, rank 1.
const Values kTorchrun = {{"GROUP_RANK", "0"},
                          {"GROUP_WORLD_SIZE", "1"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"OMP_NUM_THREADS", "1"},
                          {"RANK", "1"},
                          {"ROLE_NAME", "default"},
                          {"ROLE_RANK", "1"},
                          {"ROLE_WORLD_SIZE", "2"},
                          {"TORCHELASTIC_MAX_RESTARTS", "0"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                          {"WORLD_SIZE", "2"}};

// Kubernetes' PyTorchJob, worker 1 of a master and two workers (training-operator's documentation).
const Values kPyTorchJob = {{"MASTER_ADDR", "job-master-0"},
                            {"MASTER_PORT", "23456"},
                            {"WORLD_SIZE", "3"},
                            {"RANK", "2"},
                            {"PYTHONUNBUFFERED", "1"}};

// mpirun --allow-run-as-root --oversubscribe -n 2 env, Open MPI 4.1.4, rank 1.
const Values kOpenMpi = {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                         {"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_MCA_ess_base_jobid", "2056716289"},
                         {"OMPI_MCA_orte_num_nodes", "1"},
                         {"OMPI_MCA_orte_precondition_transports", "af6ebef698b3be89-7efdeeed7baa0e74"},
                         {"OMPI_UNIVERSE_SIZE", "2"},
                         {"PMIX_NAMESPACE", "2056716289"},
                         {"PMIX_RANK", "1"}};

// srun -N 3 --ntasks=7 in an allocation (srun's manual, "OUTPUT ENVIRONMENT VARIABLES"), task 5.
const Values kSlurm = {{"SLURM_JOB_ID", "70123"},
                       {"SLURM_STEP_ID", "2"},
                       {"SLURM_PROCID", "5"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_NTASKS", "7"},
                       {"SLURM_STEP_NUM_TASKS", "7"},
                       {"SLURM_STEP_NUM_NODES", "3"},
                       {"SLURM_STEP_TASKS_PER_NODE", "3,2(x2)"},
                       {"SLURM_STEP_NODELIST", "gpu[07-08,12]"}};

void check_counts(const Topology& topology, int rank, int world, int local, int local_world, int node,
                  int nodes) {
  CHECK(topology.rank == rank);
  CHECK(topology.world_size == world);
  CHECK(topology.local_rank == local);
  CHECK(topology.local_world_size == local_world);
  CHECK(topology.node_rank == node);
  CHECK(topology.num_nodes == nodes);
}

void check_error(const EnvVars& variables, const std::vector<std::string>& parts) {
  try {
    detect_topology(variables);
    FAIL("no error");
  } catch (const ConfigError& error) {
    for (const std::string& part : parts) CHECK_THAT(error.what(), ContainsSubstring(part));
    CHECK(error.exit_code() == 2);
  }
}

}  // namespace

TEST_CASE("alone", "[environment]") {
  const Topology topology = detect_topology(EnvVars());
  CHECK(topology.launcher == "plain");
  check_counts(topology, 0, 1, 0, 1, 0, 1);
  CHECK_FALSE(topology.agent_store);
  CHECK(topology.job_id != detect_topology(EnvVars()).job_id);
}

TEST_CASE("our own launcher", "[environment]") {
  const Topology topology = detect_topology(with(kAccel));
  CHECK(topology.launcher == "accel");
  check_counts(topology, 1, 2, 1, 2, 0, 1);
  CHECK(topology.master_addr == "127.0.0.1");
  CHECK(topology.master_port == 29500);
  CHECK(topology.restart_count == 2);
  CHECK(topology.job_id == "9e0684c72327d180");
  CHECK_FALSE(topology.listen_fd.has_value());
  CHECK_FALSE(topology.agent_store);

  // Other launchers' variables around `accel launch` do not matter; a torchrun inside a rank does.
  CHECK(detect_topology(with(kOpenMpi, kAccel)).launcher == "accel");
  CHECK(detect_topology(with(kSlurm, kAccel)).launcher == "accel");
  CHECK(detect_topology(with(kAccel, kTorchrun)).launcher == "torchrun");

  check_error(without(kAccel, "RANK"), {"RANK is missing", "accel"});
  check_error(without(kAccel, "MASTER_PORT"), {"MASTER_PORT is missing"});
  Values no_job = kAccel;
  no_job.erase("TORCHELASTIC_RUN_ID");
  check_error(without(no_job, "ACCELERATE_JOB_ID"), {"ACCELERATE_JOB_ID is missing"});
  check_error(with(kAccel, {{"RANK", "two"}}), {"RANK", "'two'", "integer"});
}

TEST_CASE("an inherited descriptor is used only if it listens", "[environment]") {
  const UniqueFd listening(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const UniqueFd file(::open("/dev/null", O_RDONLY));
  const auto read_fd = [](int fd) {
    return detect_topology(with(kAccel, {{"ACCELERATE_LISTEN_FD", std::to_string(fd)}})).listen_fd;
  };
  CHECK_FALSE(read_fd(listening.get()).has_value());  // bound, not listening
  REQUIRE(::listen(listening.get(), 1) == 0);
  CHECK(read_fd(listening.get()) == listening.get());
  CHECK((::fcntl(listening.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_FALSE(read_fd(file.get()).has_value());
  CHECK_FALSE(read_fd(9999).has_value());
  CHECK_FALSE(read_fd(-1).has_value());
}

TEST_CASE("torchrun", "[environment]") {
  const Topology topology = detect_topology(with(kTorchrun));
  CHECK(topology.launcher == "torchrun");
  check_counts(topology, 1, 2, 1, 2, 0, 1);
  CHECK(topology.agent_store);
  CHECK(topology.job_id == "none-29500");
  const Topology second = detect_topology(with(kTorchrun, {{"RANK", "5"},
                                                           {"WORLD_SIZE", "8"},
                                                           {"LOCAL_WORLD_SIZE", "4"},
                                                           {"GROUP_RANK", "1"},
                                                           {"GROUP_WORLD_SIZE", "2"},
                                                           {"MASTER_ADDR", "node0"},
                                                           {"TORCHELASTIC_RUN_ID", "my job/1"}}));
  check_counts(second, 5, 8, 1, 4, 1, 2);
  CHECK(second.job_id == "my-job-1-29500");
  check_error(without(kTorchrun, "WORLD_SIZE"), {"WORLD_SIZE is missing"});
}

TEST_CASE("the same variables without torchrun", "[environment]") {
  const Topology pod = detect_topology(with(kPyTorchJob));
  CHECK(pod.launcher == "torchrun");
  check_counts(pod, 2, 3, 0, 1, 2, 3);
  CHECK(pod.master_addr == "job-master-0");
  CHECK(pod.master_port == 23456);
  CHECK_FALSE(pod.agent_store);
  CHECK(pod.job_id == "env-job-master-0-23456");

  // By hand on one machine: a loopback address means that all ranks are here.
  const Topology hand = detect_topology(
      EnvVars({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}}));
  check_counts(hand, 1, 2, 1, 2, 0, 1);

  check_error(without(kPyTorchJob, "MASTER_ADDR"), {"MASTER_ADDR is missing", "WORLD_SIZE is 3"});
  check_counts(detect_topology(EnvVars({{"RANK", "0"}, {"WORLD_SIZE", "1"}})), 0, 1, 0, 1, 0, 1);
}

TEST_CASE("Open MPI", "[environment]") {
  const Topology topology = detect_topology(with(kOpenMpi));
  CHECK(topology.launcher == "open_mpi");
  check_counts(topology, 1, 2, 1, 2, 0, 1);
  CHECK(topology.master_addr == "127.0.0.1");
  CHECK(topology.master_port == 0);
  CHECK(topology.job_id == "mpi-2056716289-af6ebef698b3be89-7efdeeed7baa0e74");

  const Values two_machines = {
      {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_MCA_orte_num_nodes", "2"}};
  check_error(with(kOpenMpi, two_machines),
              {"2 machines", "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"});
  Values addressed = two_machines;
  addressed["MASTER_ADDR"] = "node0";
  const Topology far = detect_topology(with(kOpenMpi, addressed));
  check_counts(far, 3, 4, 1, 2, 1, 2);
  CHECK(far.master_addr == "node0");
  CHECK(far.master_port == 29500);
  check_error(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK"), {"OMPI_COMM_WORLD_LOCAL_RANK is missing"});
}

TEST_CASE("Slurm", "[environment]") {
  const Topology topology = detect_topology(with(kSlurm));
  CHECK(topology.launcher == "slurm");
  check_counts(topology, 5, 7, 1, 2, 1, 3);
  CHECK(topology.master_addr == "gpu07");
  CHECK(topology.master_port == 20000 + (70123 + 131 * 2) % 10000);
  CHECK(topology.job_id == "slurm-70123.2");
  const Topology chosen =
      detect_topology(with(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}}));
  CHECK(chosen.master_addr == "10.0.0.1");
  CHECK(chosen.master_port == 1234);

  const Topology one = detect_topology(with(kSlurm, {{"SLURM_PROCID", "1"},
                                                     {"SLURM_NODEID", "0"},
                                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                                     {"SLURM_STEP_NUM_NODES", "1"},
                                                     {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                     {"SLURM_STEP_NODELIST", "gpu07"}}));
  check_counts(one, 1, 2, 1, 2, 0, 1);
  CHECK(one.master_addr == "127.0.0.1");
  CHECK(one.master_port == 0);

  // A batch script has tasks to give and has started none.
  CHECK(detect_topology(without(kSlurm, "SLURM_STEP_ID")).launcher == "plain");
  CHECK(detect_topology(with(kSlurm, {{"SLURM_STEP_ID", "4294967291"}})).launcher == "plain");
  CHECK(detect_topology(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).launcher == "plain");
  check_error(without(kSlurm, "SLURM_STEP_NODELIST"), {"SLURM_STEP_NODELIST", "MASTER_ADDR"});
  check_error(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2"}}), {"SLURM_STEP_TASKS_PER_NODE", "machine 1"});
}

TEST_CASE("Slurm's compressed texts", "[environment]") {
  CHECK(detail::first_slurm_host("node1") == "node1");
  CHECK(detail::first_slurm_host("node1,node2") == "node1");
  CHECK(detail::first_slurm_host("node[07-09,12],gpu1") == "node07");
  CHECK(detail::first_slurm_host("node[3,5-6].cluster") == "node3.cluster");
  CHECK(detail::first_slurm_host("rack[1-2]n[3,5]") == "rack1n3");
  CHECK(detail::first_slurm_host("a-b[001]") == "a-b001");
  CHECK(detail::slurm_tasks_on_node("2(x3),1", 0) == 2);
  CHECK(detail::slurm_tasks_on_node("2(x3),1", 2) == 2);
  CHECK(detail::slurm_tasks_on_node("2(x3),1", 3) == 1);
  CHECK(detail::slurm_tasks_on_node("2(x3),1", 4) == 0);
  CHECK(detail::slurm_tasks_on_node("", 0) == 0);
  CHECK(detail::slurm_tasks_on_node("x", 0) == 0);
}

TEST_CASE("numbers that do not fit name their variables", "[environment]") {
  check_error(with(kTorchrun, {{"RANK", "2"}}), {"RANK=2", "WORLD_SIZE=2"});
  check_error(with(kTorchrun, {{"RANK", "-1"}}), {"RANK=-1", "WORLD_SIZE=2"});
  check_error(with(kTorchrun, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"});
  check_error(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}}), {"LOCAL_WORLD_SIZE=4", "WORLD_SIZE=2"});
  check_error(with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"});
  check_error(with(kTorchrun, {{"GROUP_RANK", "1"}}), {"GROUP_RANK=1", "GROUP_WORLD_SIZE=1"});
  check_error(with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT", "70000"});
  check_error(with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE", "out of range"});
  check_error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "7"}}),
              {"OMPI_COMM_WORLD_RANK=7", "OMPI_COMM_WORLD_SIZE=2"});
  check_error(with(kSlurm, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID=7", "SLURM_STEP_NUM_TASKS=7"});
}
