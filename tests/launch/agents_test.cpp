// Coordinator and agents with their sockets and threads, in one process over the loopback address.
#include <poll.h>

#include <memory>

#include "accelerate/core/deadline.h"
#include "accelerate/core/strings.h"
#include "accelerate/launch/agent_link.h"
#include "accelerate/launch/coordinator_server.h"
#include "test_support.h"

using namespace accelerate::detail;
using accelerate::concat;
using accelerate::Deadline;
using accelerate::UniqueFd;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds kLimit{20};  // against hangs only

struct Server {
  explicit Server(int machines, milliseconds heartbeat = seconds(5)) : machines(machines) {
    std::string unused;
    int error = 0;
    NetAddress address = resolve("127.0.0.1", 0, unused).front();
    UniqueFd fd = listen_at(address, error);
    REQUIRE(fd);
    port = local_address(fd.get()).port();
    CoordinatorOptions options;
    options.min_machines = options.max_machines = machines;
    options.nonce = "own";
    options.host = "host0";
    options.job_id = "job";
    options.token = "token";
    options.heartbeat_timeout = heartbeat;
    server = std::make_unique<CoordinatorServer>(std::move(fd), options);
  }

  AgentOptions options(int machine) const {
    AgentOptions out;
    out.address = "127.0.0.1";
    out.port = port;
    out.connect_timeout = kLimit;
    out.hello = {.type = MessageType::kHello,
                 .version = kProtocolVersion,
                 .machine = machine,
                 .machines = machines,
                 .local_processes = 1};
    out.hello.token = "token";
    out.hello.host = concat("host", machine);
    if (machine == 0) out.hello.nonce = "own";
    return out;
  }
  std::unique_ptr<AgentLink> agent(int machine) const {
    return std::make_unique<AgentLink>(options(machine));
  }

  int machines;
  int port = 0;
  std::unique_ptr<CoordinatorServer> server;
};

// The next message of a type; others are passed over.
MachineMessage await(AgentLink& link, MessageType type) {
  const Deadline deadline = Deadline::after(kLimit);
  while (!deadline.expired()) {
    while (const auto message = link.next()) {
      if (message->type == type) return *message;
      INFO("got instead: " << encode(*message));
      REQUIRE(message->type != MessageType::kEnd);
    }
    pollfd item{link.fd(), POLLIN, 0};
    ::poll(&item, 1, deadline.poll_timeout_ms());
  }
  FAIL("no message in time");
  return {};
}

// A bare connection, without the thread that keeps an agent alive.
struct RawAgent {
  RawAgent(const Server& server, int machine) : socket(connect(server.port)) {
    socket.send(encode(server.options(machine).hello));
    REQUIRE(socket.flush());
  }
  static UniqueFd connect(int port) {
    std::string unused;
    int error = 0;
    UniqueFd fd = connect_to(resolve("127.0.0.1", port, unused).front(), 5000, -1, error);
    REQUIRE(fd);
    return fd;
  }
  // Nothing when the other side has closed.
  std::optional<MachineMessage> read() {
    const Deadline deadline = Deadline::after(kLimit);
    while (lines.empty()) {
      pollfd item{socket.fd(), POLLIN, 0};
      REQUIRE(::poll(&item, 1, deadline.poll_timeout_ms()) == 1);
      if (!socket.receive(lines) && lines.empty()) return std::nullopt;
    }
    auto message = decode(lines.front());
    lines.erase(lines.begin());
    return message;
  }

  LineSocket socket;
  std::vector<std::string> lines;
};

MachineMessage ended(int attempt) {
  return {.type = MessageType::kEnded, .attempt = attempt};
}

}  // namespace

TEST_CASE("any number of agents start and end together", "[agents]") {
  for (const int machines : {1, 2, 3, 7, 32}) {
    INFO(machines << " machines");
    const Server server(machines);
    std::vector<std::unique_ptr<AgentLink>> agents;
    for (int machine = machines - 1; machine >= 0; --machine) agents.push_back(server.agent(machine));
    std::optional<int64_t> port;
    for (int i = 0; i < machines; ++i) {
      const MachineMessage start = await(*agents[static_cast<size_t>(i)], MessageType::kStart);
      CHECK(start.machine == machines - 1 - i);
      CHECK(start.machines == machines);
      CHECK(start.num_processes == machines);
      CHECK(start.first_rank == start.machine);
      CHECK(start.address == "127.0.0.1");
      CHECK(start.job == "job");
      CHECK(start.port == port.value_or(start.port));
      port = start.port;
    }
    const UniqueFd store = server.server->take_store_socket(0);
    REQUIRE(store);
    CHECK(local_address(store.get()).port() == *port);
    CHECK_FALSE(server.server->take_store_socket(0));
    for (const auto& agent : agents) agent->send(ended(0));
    for (const auto& agent : agents) CHECK(await(*agent, MessageType::kEnd).code == 0);
  }
}

TEST_CASE("a second agent with the same number is refused", "[agents]") {
  const Server server(2);
  RawAgent first(server, 1);
  REQUIRE(first.read()->type == MessageType::kWelcome);
  const auto second = server.agent(1);
  const MachineMessage end = await(*second, MessageType::kEnd);
  CHECK(end.code == 3);
  CHECK_THAT(end.text, ContainsSubstring("machine_rank 1 is taken by host host1"));
  const auto own = server.agent(0);
  CHECK(await(*own, MessageType::kStart).machines == 2);
}

TEST_CASE("an agent that falls silent is lost", "[agents]") {
  const Server server(2, milliseconds(1000));
  const auto own = server.agent(0);
  RawAgent silent(server, 1);
  CHECK(await(*own, MessageType::kStart).attempt == 0);
  const MachineMessage stop = await(*own, MessageType::kStop);
  CHECK_THAT(stop.text, ContainsSubstring("machine 1 (host host1) is lost: nothing heard for 1 s"));
  own->send(ended(0));
  CHECK(await(*own, MessageType::kEnd).code == 4);
}

TEST_CASE("a coordinator that falls silent is lost", "[agents]") {
  std::string unused;
  int error = 0;
  const UniqueFd listener = listen_at(resolve("127.0.0.1", 0, unused).front(), error);
  REQUIRE(listener);
  AgentOptions options;
  options.address = "127.0.0.1";
  options.port = local_address(listener.get()).port();
  options.heartbeat_timeout = milliseconds(1000);
  AgentLink agent(options);
  // The kernel accepts the connection; nobody answers.
  const MachineMessage end = await(agent, MessageType::kEnd);
  CHECK(end.code == 4);
  CHECK_THAT(end.text, ContainsSubstring("is lost: nothing heard for 1 s"));
}

TEST_CASE("agents outlive a coordinator that goes, and say so", "[agents]") {
  Server server(2);
  const auto own = server.agent(0);
  const auto other = server.agent(1);
  await(*own, MessageType::kStart);
  await(*other, MessageType::kStart);
  server.server.reset();
  const MachineMessage end = await(*other, MessageType::kEnd);
  CHECK(end.code == 4);
  CHECK_THAT(end.text, ContainsSubstring("the launcher of the coordinator's machine has ended"));
}

TEST_CASE("garbage costs its own connection only", "[agents]") {
  const Server server(2);
  const auto own = server.agent(0);
  LineSocket flood(RawAgent::connect(server.port));
  flood.send(std::string(300000, 'x'));
  const Deadline deadline = Deadline::after(kLimit);
  std::vector<std::string> lines;
  bool open = true;
  while (open && !deadline.expired()) {
    open = flood.flush();
    pollfd item{flood.fd(), flood.events(), 0};
    ::poll(&item, 1, deadline.poll_timeout_ms());
    if (open && (item.revents & POLLIN) != 0) open = flood.receive(lines);
  }
  CHECK_FALSE(open);
  const auto other = server.agent(1);
  CHECK(await(*own, MessageType::kStart).machines == 2);
  CHECK(await(*other, MessageType::kStart).machine == 1);
}
