// What the coordinator decides, with a clock that only moves when told to.
#include "accelerate/launch/coordinator.h"

#include "accelerate/core/strings.h"
#include "test_support.h"

using namespace accelerate::detail;
using accelerate::concat;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Bench {
  explicit Bench(int machines, int least = 0, int max_restarts = 0)
      : coordinator(options(machines, least, max_restarts), now) {}

  static CoordinatorOptions options(int machines, int least, int max_restarts) {
    CoordinatorOptions out;
    out.max_machines = machines;
    out.min_machines = least == 0 ? machines : least;
    out.fixed_ranks = least == 0;
    out.local_processes = 3;
    out.token = "token";
    out.nonce = "own";
    out.host = "host0";
    out.job_id = "job";
    out.max_restarts = max_restarts;
    out.connect_timeout = seconds(60);
    out.open_store = [](int attempt) { return 1000 + attempt; };
    return out;
  }

  MachineMessage hello(int machine, const std::string& host) const {
    MachineMessage out{.type = MessageType::kHello, .version = kProtocolVersion, .machine = machine};
    const CoordinatorOptions expected = options(machines, 0, 0);
    out.machines = machines;
    out.local_processes = expected.local_processes;
    out.token = expected.token;
    out.host = host;
    if (host == expected.host) out.nonce = expected.nonce;
    return out;
  }
  // What each connection was told, as "type text".
  std::vector<std::string> come(int connection, const MachineMessage& message) {
    coordinator.received(connection, message, "10.0.0.9", now);
    return told();
  }
  std::vector<std::string> send(int connection, MessageType type, int attempt, const std::string& text = "",
                                int number = 0) {
    MachineMessage message{.type = type, .attempt = attempt};
    message.text = text;
    message.code = number;
    message.signal = type == MessageType::kSignal ? number : 0;
    return come(connection, message);
  }
  std::vector<std::string> wait(milliseconds duration) {
    const auto end = now + duration;
    std::vector<std::string> out;
    while (now < end) {
      now = std::min(end, std::max(coordinator.next_tick(), now + milliseconds(1)));
      for (const int connection : alive)
        coordinator.received(connection, {.type = MessageType::kBeat}, "10.0.0.9", now);
      coordinator.tick(now);
      for (std::string& line : told()) out.push_back(std::move(line));
    }
    return out;
  }
  std::vector<std::string> told() {
    std::vector<std::string> out;
    for (const auto& item : coordinator.take_outgoing()) {
      const MachineMessage& message = *item.message;
      last = message;
      const std::string to = concat(item.connection, item.close ? "!" : "", " ");
      switch (message.type) {
        case MessageType::kStart:
          out.push_back(concat(to, "start ", message.attempt, ": machine ", message.machine, "/",
                               message.machines, " rank ", message.first_rank, "/", message.num_processes,
                               " at ", message.address, ":", message.port));
          break;
        case MessageType::kWelcome:
          out.push_back(to + "welcome");
          break;
        case MessageType::kRefused:
          out.push_back(to + "refused " + message.text);
          break;
        case MessageType::kStatus:
          out.push_back(to + "status " + message.text);
          break;
        case MessageType::kStop:
          out.push_back(to + "stop " + message.text);
          break;
        case MessageType::kRestart:
          out.push_back(to + "restart " + message.text);
          break;
        case MessageType::kEnd:
          out.push_back(concat(to, "end ", message.code, " ", message.text));
          break;
        default:
          break;  // beats
      }
    }
    return out;
  }

  int machines = 2;
  std::vector<int> alive;
  Coordinator::Clock::time_point now{};
  MachineMessage last;
  Coordinator coordinator;
};

using Lines = std::vector<std::string>;

// A bench of `machines` whose first attempt has begun; connection k is machine k.
Bench started(int machines, int max_restarts = 0) {
  Bench bench(machines, 0, max_restarts);
  bench.machines = machines;
  for (int machine = 0; machine < machines; ++machine) {
    bench.come(machine, bench.hello(machine, concat("host", machine)));
    bench.alive.push_back(machine);
  }
  return bench;
}

}  // namespace

TEST_CASE("machines start once all are there", "[coordinator]") {
  Bench bench(3);
  bench.machines = 3;
  CHECK(bench.come(7, bench.hello(2, "host2")) == Lines{"7 welcome"});
  CHECK(bench.come(5, bench.hello(0, "host0")) == Lines{"5 welcome"});
  bench.alive = {7, 5};
  CHECK(bench.wait(seconds(9)).empty());
  CHECK(bench.wait(seconds(2)) == Lines{"5 status waiting for machine_rank 1 of 3 machines; here: 0 (host "
                                        "host0), 2 (host host2) (50 s left)",
                                        "7 status waiting for machine_rank 1 of 3 machines; here: 0 (host "
                                        "host0), 2 (host host2) (50 s left)"});
  CHECK(bench.come(6, bench.hello(1, "host1")) == Lines{"6 welcome",
                                                        "5 start 0: machine 0/3 rank 0/9 at 10.0.0.9:1000",
                                                        "6 start 0: machine 1/3 rank 3/9 at 10.0.0.9:1000",
                                                        "7 start 0: machine 2/3 rank 6/9 at 10.0.0.9:1000"});
  CHECK(bench.send(6, MessageType::kEnded, 0).empty());
  CHECK(bench.send(5, MessageType::kEnded, 0).empty());
  CHECK(bench.send(7, MessageType::kEnded, 0) == Lines{"5! end 0 ", "6! end 0 ", "7! end 0 "});
  CHECK(bench.coordinator.finished());
}

TEST_CASE("machines that do not fit are refused by name", "[coordinator]") {
  Bench bench(2);
  bench.come(0, bench.hello(0, "host0"));
  const auto refused = [&](const MachineMessage& hello, const std::string& said) {
    const Lines lines = bench.come(1, hello);
    REQUIRE(lines.size() == 2);
    CHECK_THAT(lines[0], ContainsSubstring("0 status host other was refused: ") && ContainsSubstring(said));
    CHECK_THAT(lines[1], ContainsSubstring("1! refused ") && ContainsSubstring(said));
    for (const std::string& line : lines) CHECK_THAT(line, !ContainsSubstring("token"));
    // One that tries again is told so again, but nobody else.
    CHECK(bench.come(1, hello) == Lines{lines[1]});
  };
  refused(bench.hello(0, "other"), "machine_rank 0 is taken by host host0, and host other claims it too");
  MachineMessage hello = bench.hello(1, "other");
  hello.token = "guess";
  refused(hello, "the job at host host0 is another one");
  hello = bench.hello(1, "other");
  hello.version = kProtocolVersion + 1;
  refused(hello, concat("protocol version ", kProtocolVersion + 1, " (host other) and ", kProtocolVersion));
  hello = bench.hello(1, "other");
  hello.machines = 3;
  refused(hello, "num_machines is 3 on host other and 2 at the coordinator on host host0");
  hello = bench.hello(1, "other");
  hello.local_processes = 4;
  refused(hello, "num_processes is 8 (4 a machine) on host other and 6 (3 a machine)");
  hello = bench.hello(-1, "other");
  refused(hello, "rdzv_backend is c10d on host other and static");
  CHECK_THAT(bench.send(1, MessageType::kEnded, 0)[0], ContainsSubstring("refused"));
}

TEST_CASE("a refusal before machine 0 has come is told to it", "[coordinator]") {
  Bench bench(2);
  MachineMessage hello = bench.hello(1, "other");
  hello.machines = 3;
  CHECK(bench.come(1, hello).size() == 1);
  const Lines lines = bench.come(0, bench.hello(0, "host0"));
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "0 welcome");
  CHECK_THAT(lines[1], ContainsSubstring("0 status host other was refused: num_machines is 3"));
}

TEST_CASE("the first failure stops all, and its name stays", "[coordinator]") {
  Bench bench = started(3);
  CHECK(bench.send(1, MessageType::kFailed, 0, "rank 3 died", 9) ==
        Lines{"0 stop machine 1 (host host1): rank 3 died", "1 stop machine 1 (host host1): rank 3 died",
              "2 stop machine 1 (host host1): rank 3 died"});
  CHECK(bench.send(2, MessageType::kFailed, 0, "rank 7 died", 4).empty());
  CHECK(bench.send(0, MessageType::kSignal, 0, "", 2).empty());
  CHECK(bench.send(0, MessageType::kEnded, 0).empty());
  CHECK(bench.send(1, MessageType::kEnded, 0).empty());
  const std::string end = "! end 9 machine 1 (host host1): rank 3 died";
  CHECK(bench.send(2, MessageType::kEnded, 0) == Lines{"0" + end, "1" + end, "2" + end});
}

TEST_CASE("a lost machine stops all", "[coordinator]") {
  Bench bench = started(2);
  SECTION("by a closed connection") {
    bench.coordinator.gone(1, "connection closed", bench.now);
    CHECK(bench.told() == Lines{"0 stop machine 1 (host host1) is lost: connection lost: connection closed"});
  }
  SECTION("by silence") {
    bench.alive = {0};
    CHECK(bench.wait(milliseconds(4900)).empty());
    CHECK(bench.wait(milliseconds(200)) ==
          Lines{"1! refused the coordinator on host host0 gave this machine up: nothing heard for 5 s",
                "0 stop machine 1 (host host1) is lost: nothing heard for 5 s"});
  }
  const Lines end = bench.send(0, MessageType::kEnded, 0);
  REQUIRE(end.size() == 1);
  CHECK_THAT(end[0], ContainsSubstring("0! end 4 machine 1 (host host1) is lost: "));
}

TEST_CASE("a machine that never says that its ranks are gone is not waited for", "[coordinator]") {
  Bench bench = started(2);
  bench.send(0, MessageType::kFailed, 0, "rank 0 died", 1);
  bench.send(0, MessageType::kEnded, 0);
  CHECK(bench.wait(milliseconds(14900)).empty());
  CHECK(bench.wait(milliseconds(200)).size() == 2);
  CHECK(bench.coordinator.finished());
}

TEST_CASE("restarts are common, counted, and have a new port", "[coordinator]") {
  Bench bench = started(2, 1);
  bench.send(1, MessageType::kFailed, 0, "rank 3 died", 9);
  bench.send(0, MessageType::kEnded, 0);
  const std::string text =
      " restart machine 1 (host host1): rank 3 died\nrestart 1 of 1 of all machines in 0.2 s";
  CHECK(bench.send(1, MessageType::kEnded, 0) == Lines{"0" + text, "1" + text});
  CHECK(bench.wait(milliseconds(199)).empty());
  CHECK(bench.wait(milliseconds(2)) == Lines{"0 start 1: machine 0/2 rank 0/6 at 10.0.0.9:1001",
                                             "1 start 1: machine 1/2 rank 3/6 at 10.0.0.9:1001"});
  // What belongs to the attempt before means nothing now.
  CHECK(bench.send(1, MessageType::kFailed, 0, "late", 1).empty());
  CHECK(bench.send(0, MessageType::kFailed, 1, "rank 0 died", 5).size() == 2);
  bench.send(0, MessageType::kEnded, 1);
  CHECK(bench.send(1, MessageType::kEnded, 1).front() == "0! end 5 machine 0 (host host0): rank 0 died");
}

TEST_CASE("a lost machine may come back for a restart", "[coordinator]") {
  Bench bench = started(2, 1);
  bench.coordinator.gone(1, "connection closed", bench.now);
  bench.told();
  CHECK_THAT(bench.send(0, MessageType::kEnded, 0).front(), ContainsSubstring("restart 1 of 1"));
  bench.alive = {0};
  SECTION("and does") {
    CHECK(bench.wait(seconds(5)).empty());
    CHECK(bench.come(9, bench.hello(1, "host1")).size() == 3);
  }
  SECTION("or not") {
    const Lines lines = bench.wait(seconds(61));
    CHECK_THAT(lines.back(),
               ContainsSubstring("0! end 3 machine 1 (host host1) is lost: connection lost: connection "
                                 "closed; gave up after 60 s: waiting for machine_rank 1 of 2"));
  }
}

TEST_CASE("machines that leave before the start may come back", "[coordinator]") {
  Bench bench(2);
  bench.come(1, bench.hello(1, "host1"));
  CHECK(bench.send(1, MessageType::kSignal, 0, "", 2).empty());
  bench.coordinator.gone(1, "connection closed", bench.now);
  bench.told();
  bench.come(2, bench.hello(1, "host1"));
  CHECK(bench.come(0, bench.hello(0, "host0")).size() == 3);
  // That of the coordinator is another matter.
  Bench other(2);
  other.come(0, other.hello(0, "host0"));
  CHECK(other.send(0, MessageType::kSignal, 0, "", 2) ==
        Lines{"0! end 130 machine 0 (host host0) was stopped by SIGINT"});
}

TEST_CASE("machines number themselves by arrival", "[coordinator]") {
  Bench bench(3, 2, 3);
  bench.machines = 3;
  bench.come(4, bench.hello(-1, "b"));
  bench.alive = {4};
  CHECK(bench.wait(seconds(4)).empty());
  bench.come(5, bench.hello(-1, "host0"));
  bench.alive = {4, 5};
  CHECK(bench.wait(milliseconds(2900)).empty());
  SECTION("all come") {
    CHECK(bench.come(6, bench.hello(-1, "c")) == Lines{"6 welcome",
                                                       "4 start 0: machine 1/3 rank 3/9 at 10.0.0.9:1000",
                                                       "5 start 0: machine 0/3 rank 0/9 at 10.0.0.9:1000",
                                                       "6 start 0: machine 2/3 rank 6/9 at 10.0.0.9:1000"});
    CHECK_THAT(bench.come(7, bench.hello(-1, "d")).back(), ContainsSubstring("all of its 3 machines"));
  }
  SECTION("enough come, some are lost, others join") {
    CHECK(bench.wait(milliseconds(200)) == Lines{"4 start 0: machine 1/2 rank 3/6 at 10.0.0.9:1000",
                                                 "5 start 0: machine 0/2 rank 0/6 at 10.0.0.9:1000"});
    CHECK(bench.come(6, bench.hello(-1, "c")) ==
          Lines{"6 welcome", "6 status the job is running already; this machine joins at its next restart"});
    // One that only waits may go without disturbing those that run.
    CHECK(bench.send(6, MessageType::kSignal, 0, "", 2).empty());
    bench.coordinator.gone(4, "connection closed", bench.now);
    CHECK(bench.told() == Lines{"5 stop machine 1 (host b) is lost: connection lost: connection closed"});
    CHECK(bench.send(5, MessageType::kEnded, 0).size() == 2);
    bench.alive = {5, 6};
    CHECK(bench.wait(milliseconds(3300)) == Lines{"5 start 1: machine 0/2 rank 0/6 at 10.0.0.9:1001",
                                                  "6 start 1: machine 1/2 rank 3/6 at 10.0.0.9:1001"});
    bench.coordinator.gone(6, "connection closed", bench.now);
    bench.send(5, MessageType::kEnded, 1);
    bench.alive = {5};
    const Lines lines = bench.wait(seconds(62));
    CHECK_THAT(lines.back(),
               ContainsSubstring("end 3") && ContainsSubstring("1 more of at least 2 machines"));
  }
}

TEST_CASE("messages survive the wire, and what is none is recognised", "[coordinator]") {
  MachineMessage message{.type = MessageType::kStart, .machine = 3, .attempt = 2};
  message.job = "j\"\n";
  const auto back = decode(encode(message));
  REQUIRE(back);
  CHECK(back->type == MessageType::kStart);
  CHECK(back->machine == 3);
  CHECK(back->attempt == 2);
  CHECK(back->job == "j\"\n");
  CHECK(encode(message).find('\n') == std::string::npos);
  MachineMessage bad;
  bad.text = "\x1b[2J\xff" + std::string(100000, 'x');
  REQUIRE(decode(encode(bad)));
  CHECK(decode(encode(bad))->text.find('\x1b') == std::string::npos);
  CHECK(decode(encode(bad))->text.size() < 5000);
  for (const char* line : {"", "GET / HTTP/1.1", "{}", "[]", "{\"type\":1}", "{\"type\":\"what\"}",
                           "{\"type\":\"start\",\"attempt\":\"x\"}", "{\"type\":\"start\",\"attempt\":1e30}",
                           "{\"type\":\"start\",\"machine\":-2}", "{\"type\":\"start\",\"text\":5}",
                           "{\"type\":\"start\",\"port\":99999999999}"}) {
    INFO(line);
    CHECK_FALSE(decode(line));
  }
  CHECK_FALSE(decode(std::string(60000, '[')));
}
