// The devices that ranks are given, where CUDA_VISIBLE_DEVICES names some already.
#include "launcher/devices.h"
#include "accelerate/environment/variables.h"
#include "config/config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

// What ranks get with --multi_gpu and these flags, on a machine on which `visible` is set.
std::string given_to_ranks(const std::string& ids, const std::vector<std::string>& visible) {
  const EnvVars environment =
      test::variables({{accelerate::variables::kCudaVisibleDevices, join(visible, ",")}});
  const Config config = load_config(
      {.file = std::nullopt,
       .environment = environment,
       .command_line = {{"distributed_type", "MULTI_GPU"}, {"num_processes", "2"}, {"gpu_ids", ids}},
       .machine = gpu_box(visible)});
  return cli::devices_of_ranks(config, environment).value_or("inherited");
}

}  // namespace

TEST_CASE("ranks get the devices of gpu_ids as the machine names them", "[launcher]") {
  CHECK(given_to_ranks("4,5", {"4", "5"}) == "4,5");
  CHECK(given_to_ranks("6,4", {"4", "5", "6"}) == "6,4");
  CHECK(given_to_ranks("GPU-1a,GPU-2b", {"GPU-1a", "GPU-2b"}) == "GPU-1a,GPU-2b");
  CHECK(given_to_ranks("all", {"4", "5"}) == "inherited");
  CHECK_THROWS_AS(given_to_ranks("0,1", {"4", "5"}), ConfigError);
  CHECK_THROWS_AS(given_to_ranks("0,1", {"GPU-1a", "GPU-2b"}), ConfigError);
}
