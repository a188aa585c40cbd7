#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <limits>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kName = "accel";

bool listens_on(int fd, int port) {
  int listening = 0;
  socklen_t bytes = sizeof listening;
  if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || listening == 0) return false;
  sockaddr_storage address{};
  bytes = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return false;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port) == port;
  return address.ss_family == AF_INET6 &&
         ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port) == port;
}

// The descriptor that the launcher left us, if it is one. Programs that a rank starts inherit the variable as
// well, and there the number may be closed or mean something else.
std::optional<int> read_listen_fd(const EnvVars& variables, int port) {
  const auto fd = variables.get_int(variables::kListenFd);
  if (!fd || *fd < 0 || *fd > std::numeric_limits<int>::max()) return std::nullopt;
  const int number = static_cast<int>(*fd);
  if (!listens_on(number, port)) return std::nullopt;
  // From here on it is ours alone: programs that this rank starts must not hold the port.
  ::fcntl(number, F_SETFD, FD_CLOEXEC);
  return number;
}

class AccelEnvironment final : public Environment {
 public:
  std::string_view name() const override { return kName; }

  bool detected(const EnvVars& variables) const override {
    if (variables.get(variables::kLauncher) != kName) return false;
    // A torchrun that a rank started passes our variables on under its own run id.
    const auto run_id = variables.get(variables::kTorchElasticRunId);
    return !run_id || run_id == variables.get(variables::kJobId);
  }

  Topology read(const EnvVars& variables) const override {
    Topology out;
    out.launcher = kName;
    out.rank = required_int(variables, variables::kRank, kName);
    out.world_size = required_int(variables, variables::kWorldSize, kName);
    out.local_rank = required_int(variables, variables::kLocalRank, kName);
    out.local_world_size = required_int(variables, variables::kLocalWorldSize, kName);
    out.node_rank = int_or(variables, variables::kGroupRank, 0);
    out.num_nodes = int_or(variables, variables::kGroupWorldSize, 1);
    out.master_addr = variables.get(variables::kMasterAddr).value_or("127.0.0.1");
    out.master_port = variables.get(variables::kStorePort)
                          ? required_int(variables, variables::kStorePort, kName)
                          : required_int(variables, variables::kMasterPort, kName);
    out.restart_count = int_or(variables, variables::kTorchElasticRestartCount, 0);
    out.listen_fd = read_listen_fd(variables, out.master_port);
    const auto job_id = variables.get(variables::kJobId);
    if (!job_id) {
      throw ConfigError(
          {.what = concat("environment variable ", variables::kJobId, " is missing, though ",
                          variables::kLauncher, "=accel is set"),
           .hint = concat("Start the program through `accel launch`, or unset ", variables::kLauncher, ".")});
    }
    out.job_id = to_job_id(*job_id);
    return out;
  }
};

}  // namespace

std::unique_ptr<Environment> make_accel_environment() {
  return std::make_unique<AccelEnvironment>();
}

}  // namespace accelerate::detail
