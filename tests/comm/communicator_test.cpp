#include "accelerate/comm/communicator.h"

#include "accelerate/comm/local_rendezvous.h"
#include "accelerate/core/error.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;

namespace {

void with_communicators(int size, const std::function<void(Communicator&)>& body,
                        std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  test::run_threads(size, [&](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    const auto communicator =
        make_communicator(store.share(), rank, size, true, {.backend = "gloo", .timeout = timeout}, logger);
    body(*communicator);
  });
}

}  // namespace

TEST_CASE("all_reduce over 1 to 8 ranks equals the formula for every operation and for empty tensors") {
  for (const int size : {1, 2, 3, 5, 8}) {
    with_communicators(size, [&](Communicator& comm) {
      const double mine = comm.rank() + 1;
      const auto reduced = [&](ReduceOp op) {
        at::Tensor value = torch::full({3, 5}, mine, torch::kDouble);
        comm.all_reduce(value, op);
        return value[2][4].item<double>();
      };
      double sum = 0;
      double product = 1;
      for (int r = 1; r <= size; ++r) sum += r, product *= r;
      // Catch's assertions are not thread-safe, so ranks throw instead.
      const auto expect = [](double got, double want, const char* what) {
        if (got != want) throw std::runtime_error(concat(what, ": got ", got, ", expected ", want));
      };
      expect(reduced(ReduceOp::kSum), sum, "sum");
      expect(reduced(ReduceOp::kMean), sum / size, "mean");
      expect(reduced(ReduceOp::kMin), 1, "min");
      expect(reduced(ReduceOp::kMax), size, "max");
      expect(reduced(ReduceOp::kProduct), product, "product");
      at::Tensor empty = torch::empty({0, 4});
      comm.all_reduce(empty);
      expect(static_cast<double>(empty.numel()), 0, "empty");
    });
  }
}

TEST_CASE("all_gather, broadcast and reduce_scatter follow rank order, also for strided and 0-d tensors") {
  for (const int size : {1, 2, 3, 4}) {
    with_communicators(size, [&](Communicator& comm) {
      const int rank = comm.rank();
      const auto check = [](bool ok, const char* what) {
        if (!ok) throw std::runtime_error(what);
      };
      const at::Tensor strided = torch::arange(6).reshape({2, 3}).t() + 10 * rank;
      std::vector<at::Tensor> parts;
      for (int r = 0; r < comm.size(); ++r) parts.push_back(torch::arange(6).reshape({2, 3}).t() + 10 * r);
      check(comm.all_gather(strided).equal(torch::cat(parts)), "all_gather");
      check(comm.all_gather(torch::tensor(static_cast<int64_t>(rank))).equal(torch::arange(comm.size())),
            "all_gather of scalars");
      for (int root = 0; root < comm.size(); ++root) {
        at::Tensor value = torch::full({4}, rank, torch::kLong);
        comm.broadcast(value, root);
        check(value.equal(torch::full({4}, root, torch::kLong)), "broadcast");
      }
      const at::Tensor rows = torch::arange(2 * comm.size()).to(torch::kFloat) * (rank + 1);
      const int64_t total = comm.size() * (comm.size() + 1) / 2;
      check(comm.reduce_scatter(rows).equal(torch::arange(2 * rank, 2 * rank + 2).to(torch::kFloat) *
                                            static_cast<double>(total)),
            "reduce_scatter");
      comm.barrier();
    });
  }
}

TEST_CASE("what a communicator can't do is an error in words") {
  with_communicators(2, [](Communicator& comm) {
    const auto message = [&](const std::function<void()>& action) -> std::string {
      try {
        action();
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    at::Tensor ints = torch::ones({2}, torch::kLong);
    const auto contains = [](const std::string& text, const std::string& part) {
      if (text.find(part) == std::string::npos)
        throw std::runtime_error(concat("'", part, "' not in: ", text));
    };
    contains(message([&] { comm.all_reduce(ints, ReduceOp::kMean); }), "expected a floating dtype, got Long");
    contains(message([&] { comm.broadcast(ints, 2); }), "expected a rank from 0 to 1, got 2");
    contains(message([&] { comm.reduce_scatter(torch::ones({3})); }), "multiple of 2 ranks");
  });
}

TEST_CASE("a rank that does not come is named when the deadline passes") {
  std::string message;
  Logger logger(0, LogLevel::kOff);
  try {
    make_communicator(make_in_memory_store(), 0, 3, true,
                      {.backend = "gloo",
                       .timeout = std::chrono::milliseconds(300),
                       .progress_interval = std::chrono::milliseconds(50)},
                      logger);
  } catch (const CommError& error) {
    message = error.what();
  }
  CHECK_THAT(message, ContainsSubstring("1 of 3 ranks have arrived; waiting for ranks 1 and 2"));
  CHECK_THAT(message, ContainsSubstring("rank 0:"));
}

TEST_CASE("who is present and who is missing is printed while waiting") {
  std::vector<std::string> lines;
  Logger logger(0, LogLevel::kInfo, [&](std::string_view line) { lines.emplace_back(line); });
  CHECK_THROWS_AS(make_communicator(make_in_memory_store(), 0, 2, true,
                                    {.backend = "gloo",
                                     .timeout = std::chrono::milliseconds(400),
                                     .progress_interval = std::chrono::milliseconds(50)},
                                    logger),
                  CommError);
  REQUIRE_FALSE(lines.empty());
  CHECK(lines[0] == "1 of 2 ranks have arrived; waiting for rank 1");
}

TEST_CASE("a peer that left early is named, with what it had done, long before the timeout") {
  std::string message;
  test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    auto comm =
        make_communicator(store.share(), rank, 2, true, {.timeout = std::chrono::seconds(50)}, logger);
    at::Tensor value = torch::ones({4});
    comm->all_reduce(value);
    if (rank == 1) return;
    try {
      for (int i = 0; i < 3; ++i) comm->all_reduce(value);
    } catch (const CommError& error) {
      message = error.what();
    }
  });
  CHECK_THAT(
      message,
      ContainsSubstring("rank 0: all_reduce #2 of Float [4] failed on shm: rank 1 left after 1 collective"));
}

TEST_CASE("a stuck peer is named after the timeout") {
  std::string message;
  std::atomic<bool> done = false;
  test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    auto comm =
        make_communicator(store.share(), rank, 2, true, {.timeout = std::chrono::milliseconds(500)}, logger);
    if (rank == 1) {
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      comm->barrier();
    } catch (const CommError& error) {
      message = error.what();
    }
    done = true;
  });
  CHECK_THAT(message, ContainsSubstring(
                          "barrier #1 failed on shm: rank 1 has not come: it is in no collective since"));
}

TEST_CASE("debug mode names what each rank is about to do when they disagree") {
  std::mutex mutex;
  std::vector<std::string> messages;
  const auto disagree = [&](const std::function<void(Communicator&)>& action) {
    messages.clear();
    test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
      Logger logger(rank, LogLevel::kOff);
      auto comm = make_communicator(store.share(), rank, 2, true,
                                    {.timeout = std::chrono::seconds(30), .debug = true}, logger);
      at::Tensor same = torch::ones({2});
      comm->all_reduce(same);
      try {
        action(*comm);
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        messages.emplace_back(error.what());
      }
    });
    REQUIRE(messages.size() == 2);  // on both ranks, neither hangs
    std::sort(messages.begin(), messages.end());
  };
  disagree([](Communicator& comm) { comm.all_gather(torch::ones({2 + comm.rank()})); });
  CHECK_THAT(messages[0],
             ContainsSubstring("rank 0: all_gather #2 of Float [2]; rank 1: all_gather #2 of Float [3]"));
  disagree([](Communicator& comm) {
    at::Tensor value = torch::ones({2}, comm.rank() == 0 ? torch::kFloat : torch::kDouble);
    comm.all_reduce(value);
  });
  CHECK_THAT(messages[1], ContainsSubstring("of Float [2]") && ContainsSubstring("of Double [2]"));
  disagree([](Communicator& comm) {
    at::Tensor value = torch::ones({2});
    if (comm.rank() == 0) return comm.barrier();
    comm.broadcast(value);
  });
  CHECK_THAT(messages[0], ContainsSubstring("rank 0: barrier #2; rank 1: broadcast #2 of Float [2]"));
}

TEST_CASE("an unknown back end lists the ones there are") {
  Logger logger(0, LogLevel::kOff);
  CHECK_THROWS_WITH(make_communicator(make_in_memory_store(), 0, 2, true, {.backend = "glou"}, logger),
                    ContainsSubstring("expected one of gloo") && ContainsSubstring("got 'glou'"));
}

TEST_CASE("ranks without an address find each other through the local rendezvous") {
  const std::string job = concat("rendezvous-", ::getpid());
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  std::vector<uint16_t> ports(3);
  std::vector<std::thread> peers;
  for (int rank = 0; rank < 3; ++rank) {
    peers.emplace_back(
        [&, rank] { ports[static_cast<size_t>(rank)] = ask_local_rendezvous(job, rank + 1, deadline); });
  }
  LocalRendezvousServer server(job, 3, deadline);
  for (std::thread& peer : peers) peer.join();
  CHECK(server.port() != 0);
  CHECK(ports == std::vector<uint16_t>(3, server.port()));
  CHECK_THROWS_AS(LocalRendezvousServer(job, 1, deadline), CommError);  // the name is taken
  CHECK_THROWS_WITH(ask_local_rendezvous(job + "-other", 1, Deadline::after(std::chrono::milliseconds(30))),
                    ContainsSubstring("rank 0 of job"));
}

TEST_CASE("a job over a real TCP store meets without a port from the launcher") {
  const std::string job = concat("tcp-", ::getpid());
  std::atomic<int64_t> total = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Logger logger(rank, LogLevel::kOff);
      const Topology topology{.launcher = "open_mpi",
                              .rank = rank,
                              .world_size = 3,
                              .local_rank = rank,
                              .local_world_size = 3,
                              .job_id = job};
      const auto comm = make_communicator(topology, {.timeout = std::chrono::seconds(30)}, logger);
      at::Tensor value = torch::full({1}, rank + 1, torch::kLong);
      comm->all_reduce(value);
      total += value.item<int64_t>();
      comm->barrier();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(total == 18);  // every one of 3 ranks got 1 + 2 + 3
}
