// `accel launch` in a pod of Kubernetes' PyTorchJob. The variables are those that its operator sets
// (training-operator, pkg/controller.v1/pytorch/envvar.go and elastic.go).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "accelerate/core/machine.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

const Values kPod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}, {"CUDA_VISIBLE_DEVICES", "-1"}};
// Worker 0 of a master and two workers, operators before 1.7.
const Values kPlain = {{"MASTER_ADDR", "job-master-0"},
                       {"MASTER_PORT", "23456"},
                       {"WORLD_SIZE", "3"},
                       {"RANK", "1"},
                       {"PYTHONUNBUFFERED", "1"}};
// The same with nprocPerNode: "2", from 1.7 on.
const Values kPet = {{"PET_NNODES", "3"},
                     {"PET_NPROC_PER_NODE", "2"},
                     {"PET_NODE_RANK", "1"},
                     {"PET_MASTER_ADDR", "job-master-0"},
                     {"PET_MASTER_PORT", "23456"},
                     {"MASTER_ADDR", "job-master-0"},
                     {"MASTER_PORT", "23456"},
                     {"WORLD_SIZE", "6"},
                     {"RANK", "1"}};
// elasticPolicy of 2 to 4 replicas.
const Values kElastic = {{"PET_RDZV_BACKEND", "c10d"}, {"PET_RDZV_ENDPOINT", "job-worker-0:23456"},
                         {"PET_RDZV_ID", "job"},       {"PET_NNODES", "2:4"},
                         {"PET_NPROC_PER_NODE", "1"},  {"PET_MAX_RESTARTS", "3"}};

Values with(Values values) {
  values.insert(values.begin(), kPod.begin(), kPod.end());
  return values;
}

// What a dry run prints.
std::string explained(const Values& values, std::vector<std::string> flags = {}) {
  flags.insert(flags.begin(), {"launch", "--dry_run", "--cpu"});
  flags.push_back(bin("rank_script"));
  AccelRun run(flags, {.environment = values});
  CHECK(run.finish() == 0);
  CHECK(run.err().empty());
  return run.out();
}

void check_holds(const std::string& text, const std::vector<std::string>& parts) {
  INFO(text);
  for (const std::string& part : parts) CHECK_THAT(text, ContainsSubstring(part));
}

}  // namespace

TEST_CASE("a pod's variables make it a machine of the job", "[launcher]") {
  check_holds(explained(with(kPlain)),
              {"3 processes = 3 machines x 1", "Kubernetes (WORLD_SIZE)", "Kubernetes (RANK)",
               "Kubernetes (MASTER_ADDR)", "port: 23456 of job-master-0", "rank 1:", "GROUP_RANK=1"});
  check_holds(explained(with(kPet)),
              {"6 processes = 3 machines x 2", "Kubernetes (PET_NNODES)", "Kubernetes (PET_NODE_RANK)",
               "Kubernetes (PET_NPROC_PER_NODE)", "Kubernetes (PET_MASTER_ADDR)", "rank 3:"});
  check_holds(explained(with(kElastic)),
              {"4 processes = 4 machines x 1 (2 at least)", "Kubernetes (PET_RDZV_ENDPOINT)",
               "rdzv_backend: c10d", "port: 23456 of job-worker-0", "TORCHELASTIC_MAX_RESTARTS=3"});
  check_holds(explained(with({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "2"}, {"PET_NODE_RANK", "0"}})),
              {"2 processes = 1 machine x 2"});
}

TEST_CASE("flags and variables of ours come before a pod's", "[launcher]") {
  check_holds(explained(with(kPet), {"--num_machines", "1", "--num_processes", "2"}),
              {"2 processes = 1 machine x 2"});
  check_holds(explained(with(kPet), {"--main_process_ip", "10.0.0.1"}),
              {"port: 23456 of 10.0.0.1", "6 processes = 3 machines x 2"});
  check_holds(explained(with(kPlain), {"--nproc_per_node", "2"}), {"6 processes = 3 machines x 2"});
  Values ours = with(kPet);
  ours.emplace_back("ACCELERATE_MACHINE_RANK", "2");
  check_holds(explained(ours), {"environment ACCELERATE_MACHINE_RANK", "GROUP_RANK=2"});
  // RANK and WORLD_SIZE alone, outside Kubernetes, are nobody's order to the launcher.
  check_holds(explained(kPlain), {"1 process = 1 machine x 1"});
}

TEST_CASE("a pod's variables that make no sense are named", "[launcher]") {
  for (const auto& [name, value] :
       Values{{"PET_NNODES", "4:2"}, {"PET_NNODES", "x"}, {"PET_NPROC_PER_NODE", "gpu"}}) {
    Values values = with(kPet);
    values.emplace_back(name, value);
    AccelRun run({"launch", "--cpu", bin("rank_script")}, {.environment = values});
    CHECK(run.finish() == 2);
    CHECK(run.out().empty());
    CHECK_THAT(run.err(), ContainsSubstring(name) && ContainsSubstring("'" + value + "'"));
  }
}

TEST_CASE("two pods run a job together", "[launcher]") {
  accelerate::UniqueFd held(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  REQUIRE(::bind(held.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
  ::getsockname(held.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  const std::string port = std::to_string(ntohs(address.sin_port));
  held.reset();
  std::vector<std::unique_ptr<AccelRun>> pods;
  for (const char* rank : {"0", "1"}) {
    const Values values =
        with({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}, {"WORLD_SIZE", "2"}, {"RANK", rank}});
    pods.push_back(
        std::make_unique<AccelRun>(std::vector<std::string>{"launch", "--cpu", "--main_process_ip",
                                                            "127.0.0.1", bin("rank_script"), "topology"},
                                   RunOptions{.environment = values}));
  }
  for (size_t rank = 0; rank < pods.size(); ++rank) {
    CHECK(pods[rank]->finish() == 0);
    INFO(pods[rank]->all());
    CHECK_THAT(pods[rank]->out(), ContainsSubstring(concat("rank=", rank, "/2 local=0/1 node=", rank, "/2")));
  }
}
