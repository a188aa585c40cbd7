#include "accelerate/core/machine.h"

#include <sched.h>

#include "test_support.h"

TEST_CASE("cores follow the affinity mask", "[core]") {
  CHECK(accelerate::logical_cpus() >= accelerate::physical_cores());
  CHECK(accelerate::physical_cores() >= 1);
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(accelerate::logical_cpus() == 1);
  CHECK(accelerate::physical_cores() == 1);
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK_FALSE(accelerate::host_name().empty());
}
