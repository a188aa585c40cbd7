// CPUs, cores and NUMA nodes as a made-up /sys tells them.
#include "accelerate/core/cpu_topology.h"

#include <filesystem>
#include <numeric>

#include "accelerate/core/strings.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using testing::TempDir;
using testing::write_file;
using Cpus = std::vector<int>;
using Shares = std::vector<Cpus>;

namespace {

// `nodes` nodes of `cores` cores, each of `threads` CPUs, which are numbered as Linux does: all first threads
// first.
struct FakeSys {
  TempDir dir;
  int cpus;

  FakeSys(int nodes, int cores, int threads) : cpus(nodes * cores * threads) {
    for (int node = 0; node < nodes; ++node) {
      Cpus own;
      for (int core = node * cores; core < (node + 1) * cores; ++core) {
        Cpus siblings;
        for (int thread = 0; thread < threads; ++thread) siblings.push_back(core + thread * nodes * cores);
        for (const int cpu : siblings) {
          put(concat("devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"),
              format_cpu_list(siblings));
          own.push_back(cpu);
        }
      }
      std::sort(own.begin(), own.end());
      put(concat("devices/system/node/node", node, "/cpulist"), format_cpu_list(own));
    }
  }
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = dir / name;
    std::filesystem::create_directories(path.parent_path());
    write_file(path, text + "\n");
  }
  void add_gpu(const std::string& bus, const std::string& node) const {
    put(concat("bus/pci/devices/", bus, "/vendor"), "0x10de");
    put(concat("bus/pci/devices/", bus, "/class"), "0x030200");
    put(concat("bus/pci/devices/", bus, "/numa_node"), node);
  }
  Cpus all() const {
    Cpus out(static_cast<size_t>(cpus));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  Shares share(int ranks, const std::vector<std::optional<int>>& nodes = {}) const {
    return share_cpus(all(), ranks, nodes, dir.path());
  }
};

}  // namespace

TEST_CASE("lists of CPUs are read and written", "[core]") {
  CHECK(parse_cpu_list("0-3,8,10-11") == Cpus{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("x,2,3-,4-1,-1,7") == Cpus{2, 7});
  CHECK(format_cpu_list({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
  CHECK(format_cpu_list({}).empty());
}

TEST_CASE("ranks share CPUs node by node, cores whole", "[core]") {
  const FakeSys sys(2, 4, 2);
  CHECK(sys.share(2) == Shares{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}});
  CHECK(sys.share(4) == Shares{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}});
  CHECK(sys.share(8)[7] == Cpus{7, 15});
  CHECK(sys.share(1)[0] == sys.all());
  // More ranks than cores: hyper-threads are told apart.
  CHECK(sys.share(16)[1].size() == 1);
  CHECK(sys.share(17).empty());
}

TEST_CASE("shares are disjoint and cover all that may be used", "[core]") {
  const FakeSys sys(3, 4, 1);
  for (const Cpus& allowed : {sys.all(), Cpus{1, 2, 3, 9, 11}, Cpus{0, 4, 5, 6, 7, 8, 10}}) {
    for (int ranks = 1; ranks <= static_cast<int>(allowed.size()); ++ranks) {
      const Shares shares = share_cpus(allowed, ranks, {}, sys.dir.path());
      REQUIRE(shares.size() == static_cast<size_t>(ranks));
      Cpus seen;
      for (const Cpus& share : shares) {
        CHECK_FALSE(share.empty());
        CHECK(share.size() <= shares.back().size() + 1);
        seen.insert(seen.end(), share.begin(), share.end());
      }
      std::sort(seen.begin(), seen.end());
      CHECK(seen == allowed);
    }
  }
}

TEST_CASE("ranks with devices get CPUs of their devices' nodes", "[core]") {
  const FakeSys sys(2, 4, 1);
  sys.add_gpu("0000:81:00.0", "1");
  sys.add_gpu("0000:0a:00.0", "0");
  sys.add_gpu("0000:c1:00.0", "-1");
  sys.put("bus/pci/devices/0000:00:00.0/vendor", "0x8086");
  CHECK(numa_nodes_of_gpus(sys.dir.path()) == std::vector<std::optional<int>>{0, 1, std::nullopt});
  CHECK(sys.share(2, {1, 0}) == Shares{{4, 5, 6, 7}, {0, 1, 2, 3}});
  CHECK(sys.share(2, {1, 1}) == Shares{{4, 5}, {6, 7}});
  // One that is not known, or a node with too few CPUs: as if there were no devices.
  CHECK(sys.share(2, {1, std::nullopt}) == sys.share(2));
  CHECK(sys.share(5, {0, 0, 0, 0, 0}) == sys.share(5));
}

TEST_CASE("without a /sys every CPU is a core of its own", "[core]") {
  CHECK(share_cpus({0, 1, 5}, 2, {}, "/nonexistent") == Shares{{0}, {1, 5}});
  CHECK(numa_nodes_of_gpus("/nonexistent").empty());
}
