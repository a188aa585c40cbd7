// A rank for tests of dying peers: runs collectives of all kinds and checks them, again and again, until it
// is told to stop or a peer is gone. Usage: collective_torch BACKEND TIMEOUT_MS BYTES [STEPS], with
// torchrun's variables; LOCAL_WORLD_SIZE makes up machines, each of so many ranks.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "accelerate/accelerate.h"
#include "accelerate/comm/communicator.h"
#include "accelerate/core/error.h"
#include "rank_program.h"

using accelerate::testing::say;

namespace {

int number(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}

void expect(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

// One of the collectives, whose result every rank can tell beforehand.
void run_collective(accelerate::Communicator& group, int64_t count, int step) {
  const int rank = group.rank();
  const int size = group.size();
  const float sum = static_cast<float>(size * (size - 1) / 2 + size * step);
  at::Tensor data = at::full({count}, rank + step, at::kFloat);
  switch (step % 6) {
    case 0:
      group.all_reduce(data);
      expect(data.eq(sum).all().item<bool>(), "wrong sum");
      break;
    case 1:
      group.broadcast(data, step % size);
      expect(data.eq(step % size + step).all().item<bool>(), "wrong broadcast");
      break;
    case 2: {
      const at::Tensor all = group.all_gather(data).view({size, count});
      expect(all.eq(at::arange(size, at::kFloat).view({size, 1}) + step).all().item<bool>(), "wrong gather");
      break;
    }
    case 3: {
      const at::Tensor part = group.reduce_scatter(at::full({size, count}, rank + step, at::kFloat));
      expect(part.eq(sum).all().item<bool>(), "wrong part of the sum");
      break;
    }
    case 4:
      if (size > 1) {  // round a ring, rank 0 first
        const int next = (rank + 1) % size;
        const int before = (rank + size - 1) % size;
        at::Tensor got = at::zeros({count});
        if (rank == 0) group.send(data, next);
        group.receive(got, before);
        if (rank != 0) group.send(data, next);
        expect(got.eq(before + step).all().item<bool>(), "wrong message");
      }
      break;
    default:
      group.barrier();
  }
}

}  // namespace

int main(int argc, char** argv) {
  using accelerate::concat;
  const int rank = number("RANK");
  const int size = number("WORLD_SIZE");
  const int local_size = number("LOCAL_WORLD_SIZE") > 0 ? number("LOCAL_WORLD_SIZE") : size;
  try {
    if (argc < 4) throw std::runtime_error("usage: collective_torch BACKEND TIMEOUT_MS BYTES [STEPS]");
    accelerate::Logger logger(rank, accelerate::LogLevel::kWarning);
    const accelerate::Topology topology{
        .launcher = "torchrun",
        .rank = rank,
        .world_size = size,
        .local_rank = rank % local_size,
        .local_world_size = local_size,
        .node_rank = rank / local_size,
        .num_nodes = size / local_size,
        .master_port = number("MASTER_PORT"),
        .job_id = concat(std::getenv("TORCHELASTIC_RUN_ID"), "-", rank / local_size)};
    const auto group = accelerate::make_communicator(
        topology, {.backend = argv[1], .timeout = std::chrono::milliseconds(std::atoi(argv[2]))}, logger);
    const int steps = argc > 4 ? std::atoi(argv[4]) : 1 << 30;
    say(concat("rank ", rank, " over ", group->backend_name()));
    for (int step = 0; step < steps; ++step) {
      run_collective(*group, std::atoi(argv[3]) / 4, step);
      if (step == 6) say(concat("rank ", rank, " runs"));
    }
    say(concat("rank ", rank, " done"));
    return 0;
  } catch (const std::exception& error) {
    say(concat("rank ", rank, " failed: ", accelerate::error_message(error)));
    return accelerate::exit_code(error);
  }
}
