// Two hosts that really are two networks: namespaces joined by a cable (veth), which can be unplugged. Needs
// root; without it the tests say that they did nothing, unless ACCELERATE_TEST_REQUIRE_NETWORK is set, as in
// CI.
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

using Words = std::vector<std::string>;

const char* const kPrefix = "accel-test-";

std::string ip_program() {
  for (const char* path : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"}) {
    if (::access(path, X_OK) == 0) return path;
  }
  return {};
}

bool ip(const Words& words) {
  AccelRun run(words, {}, ip_program());
  const bool good = run.finish() == 0;
  if (!good) WARN("ip " << accelerate::join(words, " ") << ": " << run.err());
  return good;
}

// Two namespaces with 10.77.0.1 and 10.77.0.2; gone with the object.
class TwoHosts {
 public:
  TwoHosts() {
    sweep_dead();
    made_ = ip({"netns", "add", name(0)}) && ip({"netns", "add", name(1)}) &&
            ip({"-n", name(0), "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                name(1)});
    for (const int host : {0, 1}) {
      made_ = made_ && ip({"-n", name(host), "address", "add", address(host) + "/24", "dev", "cable"}) &&
              ip({"-n", name(host), "link", "set", "lo", "up"}) &&
              ip({"-n", name(host), "link", "set", "cable", "up"});
    }
  }
  ~TwoHosts() {
    for (const int host : {0, 1}) {
      if (std::filesystem::exists("/run/netns/" + name(host))) ip({"netns", "delete", name(host)});
    }
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool made() const { return made_; }
  static std::string address(int host) { return concat("10.77.0.", host + 1); }
  static bool unplug(int host) { return ip({"-n", name(host), "link", "set", "cable", "down"}); }

  // `accel launch` on host `host`, with two ranks on each.
  static std::unique_ptr<AccelRun> start(int host, const Words& script, const Words& flags = {}) {
    Words more = {"--num_machines",    "2",        "--machine_rank",    std::to_string(host),
                  "--main_process_ip", address(0), "--connect_timeout", "25"};
    more.insert(more.end(), flags.begin(), flags.end());
    Words words = {"netns", "exec", name(host), bin("accel")};
    for (const std::string& word : launch_words(4, script, more)) words.push_back(word);
    return std::make_unique<AccelRun>(words, RunOptions{}, ip_program());
  }

 private:
  static std::string name(int host) { return concat(kPrefix, ::getpid(), "-", host); }

  // What a run that was killed left behind.
  static void sweep_dead() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/run/netns", error)) {
      const std::string file = entry.path().filename();
      if (!file.starts_with(kPrefix)) continue;
      const std::string pid = file.substr(std::string(kPrefix).size());
      if (!std::filesystem::exists("/proc/" + pid.substr(0, pid.find('-')))) ip({"netns", "delete", file});
    }
  }

  bool made_ = false;
};

bool usable(const TwoHosts& hosts) {
  if (hosts.made()) return true;
  const bool required = std::getenv("ACCELERATE_TEST_REQUIRE_NETWORK") != nullptr;
  if (required) FAIL("network namespaces can't be made");
  WARN("nothing was tested: network namespaces need root and iproute2");
  return false;
}

bool may_try() {
  if (::geteuid() == 0 && !ip_program().empty()) return true;
  if (std::getenv("ACCELERATE_TEST_REQUIRE_NETWORK") != nullptr) FAIL("needs root and iproute2");
  WARN("nothing was tested: network namespaces need root and iproute2");
  return false;
}

}  // namespace

TEST_CASE("a job on two hosts", "[network]") {
  if (!may_try()) return;
  const TwoHosts hosts;
  if (!usable(hosts)) return;
  TempDir dir;
  Words script = {"connect", "topology", "touch", dir / "done"};
  // Rank 0 holds the socket that the others connect to, so it may go last only.
  for (int rank = 0; rank < 4; ++rank) {
    script.push_back("await");
    script.push_back(dir / concat("done.", rank));
  }
  const auto second = TwoHosts::start(1, script);
  const auto first = TwoHosts::start(0, script);
  CHECK(first->finish() == 0);
  CHECK(second->finish() == 0);
  CHECK(first->err().empty());
  CHECK(second->err().empty());
  for (const auto& run : {first.get(), second.get()})
    CHECK(AccelRun::count_in(run->out(), "connected to 10.77.0.1\n") == 2);
  CHECK_THAT(second->out(), ContainsSubstring("rank=3/4 local=1/2 node=1/2 addr=10.77.0.1 port="));
}

TEST_CASE("an unplugged cable ends both sides, each naming the other", "[network]") {
  if (!may_try()) return;
  for (const int unplugged : {1, 0}) {
    INFO("cable of host " << unplugged);
    const TwoHosts hosts;
    if (!usable(hosts)) return;
    const auto first = TwoHosts::start(0, {"env", "RANK", "sleep"}, {"--heartbeat_timeout", "2"});
    const auto second = TwoHosts::start(1, {"env", "RANK", "sleep"}, {"--heartbeat_timeout", "2"});
    REQUIRE(first->wait_for("RANK=", 2));
    REQUIRE(second->wait_for("RANK=", 2));
    const auto since = std::chrono::steady_clock::now();
    REQUIRE(TwoHosts::unplug(unplugged));
    CHECK(first->finish() == 4);
    CHECK(second->finish() == 4);
    const auto taken = std::chrono::steady_clock::now() - since;
    WARN("cable unplugged to end of both: "
         << std::chrono::duration_cast<std::chrono::milliseconds>(taken).count() << " ms");
    CHECK_THAT(last_lines(first->err(), 1),
               ContainsSubstring("machine 1 (host ") && ContainsSubstring("is lost: nothing heard for 2 s"));
    CHECK_THAT(last_lines(second->err(), 1), ContainsSubstring("machine 0 (host ") &&
                                                 ContainsSubstring(TwoHosts::address(0)) &&
                                                 ContainsSubstring("is lost: nothing heard for 2 s"));
    CHECK(first->nothing_left());
    CHECK(second->nothing_left());
  }
}
