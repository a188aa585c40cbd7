// A rank for tests of dying peers: reduces and checks, again and again, until it is told to stop or a peer is
// gone. Usage: collective_torch BACKEND TIMEOUT_MS BYTES [STEPS], with torchrun's variables.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "accelerate/accelerate.h"
#include "accelerate/comm/communicator.h"
#include "rank_program.h"

using accelerate::testing::say;

namespace {

int number(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

}  // namespace

int main(int argc, char** argv) {
  using accelerate::concat;
  const int rank = number("RANK");
  const int size = number("WORLD_SIZE");
  try {
    if (argc < 4) throw std::runtime_error("usage: collective_torch BACKEND TIMEOUT_MS BYTES [STEPS]");
    accelerate::Logger logger(rank, accelerate::LogLevel::kWarning);
    const accelerate::Topology topology{.launcher = "torchrun",
                                        .rank = rank,
                                        .world_size = size,
                                        .local_rank = rank,
                                        .local_world_size = size,
                                        .job_id = std::getenv("TORCHELASTIC_RUN_ID")};
    const auto group = accelerate::make_communicator(
        topology, {.backend = argv[1], .timeout = std::chrono::milliseconds(std::atoi(argv[2]))}, logger);
    at::Tensor data = at::zeros({std::atoi(argv[3]) / 4});
    const int steps = argc > 4 ? std::atoi(argv[4]) : 1 << 30;
    say(concat("rank ", rank, " over ", group->backend_name()));
    for (int step = 0; step < steps; ++step) {
      data.fill_(rank + step);
      group->all_reduce(data);
      if (!data.eq(size * (size - 1) / 2 + size * step).all().item<bool>())
        throw std::runtime_error("wrong sum");
      if (step == 3) say(concat("rank ", rank, " runs"));
    }
    say(concat("rank ", rank, " done"));
    return 0;
  } catch (const std::exception& error) {
    say(concat("rank ", rank, " failed: ", accelerate::error_message(error)));
    return accelerate::exit_code(error);
  }
}
