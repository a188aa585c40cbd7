#include "accelerate/core/shared_memory_names.h"

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

TEST_CASE("only the segments of one job are removed", "[core]") {
  const std::string mine = concat("test", ::getpid(), "a");
  const std::string other = concat("test", ::getpid(), "b");
  for (const std::string& job : {mine, other}) {
    for (const char* part : {"0123456789abcdef", "x"})
      write_file("/dev/shm/" + shared_memory_prefix(job) + part, "data");
  }
  CHECK(remove_shared_memory("") == 0);
  CHECK(remove_shared_memory(shared_memory_prefix(mine).c_str()) == 2);
  CHECK(remove_shared_memory(shared_memory_prefix(mine).c_str()) == 0);
  CHECK(remove_shared_memory(shared_memory_prefix(other).c_str()) == 2);
}
