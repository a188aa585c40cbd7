// The port of rank 0's store.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;
using accelerate::UniqueFd;

namespace {

// A listening socket of this process; `port` 0 takes a free one.
UniqueFd hold_port(int& port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(fd.get(), 1) == 0);
  socklen_t bytes = sizeof address;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  port = ntohs(address.sin_port);
  return fd;
}

std::string after(const std::string& text, const std::string& mark) {
  const size_t at = text.find(mark);
  return at == std::string::npos
             ? ""
             : text.substr(at + mark.size(), text.find_first_of(" \n", at + mark.size()) - at - mark.size());
}

}  // namespace

TEST_CASE("the usual port gives way to another program", "[launch]") {
  int port = 29500;
  const UniqueFd held = hold_port(port);
  AccelRun run(launch_words(2, {"env", "MASTER_PORT"}));
  CHECK(run.finish() == 0);
  CHECK(lines_of(run.err()).size() == 1);
  CHECK_THAT(run.err(), ContainsSubstring(concat("port 29500 is taken, held by pid ", ::getpid())));
  const std::string chosen = after(run.out(), "MASTER_PORT=");
  CHECK(chosen != "29500");
  CHECK(AccelRun::count_in(run.out(), "MASTER_PORT=" + chosen) == 2);
  CHECK_THAT(run.err(), ContainsSubstring("using " + chosen + " instead"));
  CHECK(run.nothing_left());
}

TEST_CASE("a port asked for must be free", "[launch]") {
  int port = 0;
  UniqueFd held = hold_port(port);
  AccelRun run(launch_words(2, {"print", "started"}, {"--main_process_port", std::to_string(port)}));
  CHECK(run.finish() == 3);
  CHECK_THAT(run.err(), ContainsSubstring(concat("port ", port, " is taken, held by pid ", ::getpid())) &&
                            ContainsSubstring("--main_process_port 0"));
  CHECK(run.out().empty());
  CHECK(run.nothing_left());
  held.reset();
  AccelRun next(launch_words(2, {"env", "MASTER_PORT"}, {concat("--main-process-port=", port)}));
  CHECK(next.finish() == 0);
  CHECK(AccelRun::count_in(next.out(), concat("MASTER_PORT=", port)) == 2);
}

TEST_CASE("port 0 is any free one, the same for all", "[launch]") {
  AccelRun run(launch_words(2, {"env", "MASTER_PORT"}, {"--main_process_port", "0"}));
  CHECK(run.finish() == 0);
  const std::string chosen = after(run.out(), "MASTER_PORT=");
  CHECK(AccelRun::count_in(run.out(), "MASTER_PORT=" + chosen + "\n") == 2);
  CHECK(accelerate::parse_int(chosen).value_or(0) > 0);
  CHECK(run.err().empty());
}

TEST_CASE("ports that are none are refused while parsing", "[launch]") {
  for (const char* port : {"69420", "-1", "65536", "http"}) {
    AccelRun run(launch_words(2, {"print", "started"}, {"--main_process_port", port}));
    CHECK(run.finish() == 2);
    CHECK_THAT(run.err(), ContainsSubstring("main_process_port") && ContainsSubstring(port));
    CHECK(run.out().empty());
  }
}

TEST_CASE("two jobs at once do not see one another", "[launch]") {
  TempDir dir;
  const std::vector<std::string> script = {"topology", "await", dir / "go"};
  AccelRun first(launch_words(2, script));
  AccelRun second(launch_words(2, script));
  REQUIRE(first.wait_for("launcher=accel", 2));
  REQUIRE(second.wait_for("launcher=accel", 2));
  CHECK(after(first.out(), " port=") != after(second.out(), " port="));
  const std::string first_job = after(first.out(), " job=");
  const std::string second_job = after(second.out(), " job=");
  CHECK(first_job != second_job);
  CHECK(AccelRun::count_in(first.out(), " job=" + first_job) == 2);
  CHECK(AccelRun::count_in(second.out(), " job=" + second_job) == 2);
  write_file(dir / "go", "");
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
}

TEST_CASE("only rank 0 has the listening socket, and its children do not", "[launch]") {
  AccelRun run(launch_words(2, {"topology", "nested"}));
  CHECK(run.finish() == 0);
  CHECK(AccelRun::count_in(run.out(), "rank=0/2") == 2);
  CHECK(AccelRun::count_in(run.out(), "fd=yes") == 1);
  CHECK(AccelRun::count_in(run.out(), "fd=no") == 3);
}

TEST_CASE("a program may open a store of its own at MASTER_PORT", "[launch]") {
  AccelRun run(launch_words(2, {"meet", "print", "met"}));
  CHECK(run.finish() == 0);
  CHECK(AccelRun::count_in(run.out(), "met\n") == 2);
  CHECK(run.err().empty());
  // Again at once, and after a failure, though connections of the first try are in TIME_WAIT.
  AccelRun next(launch_words(2, {"meet", "@1#0", "exit", "3", "@#0", "sleep", "print", "met"},
                             {"--main_process_port", "29500", "--max_restarts", "1"}));
  CHECK(next.finish() == 0);
  CHECK(AccelRun::count_in(next.out(), "met\n") == 2);
  CHECK(next.nothing_left());
}

TEST_CASE("launchers never share a port, at the same moment or later", "[launch]") {
  constexpr int kJobs = 6;
  TempDir dir;
  std::vector<std::unique_ptr<AccelRun>> runs;
  for (int i = 0; i < kJobs; ++i)
    runs.push_back(std::make_unique<AccelRun>(
        launch_words(2, {"env", "MASTER_PORT", "meet", "print", "met", "await", dir / "go"})));
  std::set<std::string> ports;
  for (const auto& run : runs) {
    REQUIRE(run->wait_for("met", 2));
    ports.insert(after(run->out(), "MASTER_PORT="));
  }
  CHECK(ports.size() == kJobs);
  // An explicit port that another launcher holds, and on which nobody listens.
  AccelRun late(launch_words(2, {"print", "started"}, {"--main_process_port", *ports.begin()}));
  CHECK(late.finish() == 3);
  CHECK_THAT(late.err(), ContainsSubstring("is taken, held by pid ") && ContainsSubstring("(accel)"));
  write_file(dir / "go", "");
  for (const auto& run : runs) CHECK(run->finish() == 0);
}
