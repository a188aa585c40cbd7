// What is said about a collective that takes long, and about who has not come.
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;
using std::chrono::milliseconds;

namespace {

// The lines that each rank prints.
struct Lines {
  std::mutex mutex;
  std::map<int, std::string> by_rank;

  std::shared_ptr<Logger> logger(int rank) {
    return std::make_shared<Logger>(rank, LogLevel::kWarning, [this, rank](std::string_view line) {
      const std::lock_guard lock(mutex);
      by_rank[rank] += std::string(line) + "\n";
    });
  }
  std::string of(int rank) {
    const std::lock_guard lock(mutex);
    return by_rank[rank];
  }
};

// Runs ranks that are threads, with a communicator whose lines are kept.
void run(int size, Lines& lines, const CommunicatorOptions& options,
         const std::function<void(Communicator&)>& body) {
  test::run_threads(size, [&](int rank, const Store& store, const std::string&) {
    const auto logger = lines.logger(rank);
    const auto group = make_communicator(store.share(), rank, size, /*loopback=*/true, options, *logger);
    body(*group);
  });
}

}  // namespace

TEST_CASE(
    "a collective that takes long is told about: its number, who has not come, what that rank did last") {
  for (const std::string backend : {"gloo", "shm"}) {
    Lines lines;
    run(3, lines,
        {.backend = backend, .timeout = std::chrono::seconds(30), .watchdog_notice = milliseconds(300)},
        [](Communicator& group) {
          at::Tensor ones = at::ones({2, 2});
          group.all_reduce(ones);
          if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1500));
          at::Tensor data = at::full({3}, group.rank(), at::kLong);
          group.broadcast(data, 2);
          if (data[0].item<int64_t>() != 2) throw std::runtime_error("wrong broadcast");
        });
    // Only a broadcast's root may be done with it before the others have come.
    INFO(backend << "\n" << lines.of(0) << lines.of(1) << lines.of(2));
    CHECK_THAT(
        lines.of(0) + lines.of(2),
        ContainsSubstring("still in broadcast #2 of Long [3] after 0.") &&
            ContainsSubstring(concat(" on ", backend)) &&
            ContainsSubstring("rank 1 has not come: it is in no collective since ") &&
            ContainsSubstring("the last was all_reduce #1 of Float [2, 2], after 0 backward passes and 1 "
                              "collectives in all"));
    CHECK(lines.of(1).empty());
  }
}

TEST_CASE("a rank that is in another operation is told about with that operation") {
  Lines lines;
  run(2, lines,
      {.backend = test::thread_backend(),
       .timeout = std::chrono::seconds(30),
       .watchdog_notice = milliseconds(200)},
      [](Communicator& group) {
        at::Tensor data = at::ones({4});
        if (group.rank() == 1) group.receive(data, 0);
        if (group.rank() == 0) {
          std::this_thread::sleep_for(milliseconds(800));
          group.send(at::full({4}, 7, at::kFloat), 1);
        }
        group.barrier();
        if (group.rank() == 1 && data[3].item<float>() != 7) throw std::runtime_error("wrong message");
      });
  CHECK_THAT(lines.of(1), ContainsSubstring("still in receive from rank 0 of Float [4] after 0.") &&
                              ContainsSubstring("rank 0 has not come: it is in no collective"));
}

TEST_CASE("gradients that are reduced while another rank does something else are told about too") {
  Lines lines;
  test::run_threads(2, [&](int rank, const Store& store, const std::string& job_id) {
    AcceleratorOptions options = test::thread_rank_options(store, rank, 2, job_id);
    options.logger = lines.logger(rank);
    options.communicator = make_communicator(
        Store(c10::make_intrusive<c10d::PrefixStore>("watched", store.c10d_store())), rank, 2, true,
        {.backend = test::thread_backend(),
         .timeout = std::chrono::seconds(30),
         .watchdog_notice = milliseconds(300)},
        *options.logger);
    Accelerator accelerator(options);
    torch::nn::Linear net(8, 8);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 4; ++step) {
      if (rank == 1 && step == 2) std::this_thread::sleep_for(milliseconds(1200));
      accelerator.backward(model->forward(torch::ones({2, 8})).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  INFO(lines.of(0) << lines.of(1));
  CHECK_THAT(lines.of(0), ContainsSubstring("still in all_reduce #") && ContainsSubstring("of Float [72]") &&
                              ContainsSubstring("rank 1 has not come") &&
                              ContainsSubstring("after 2 backward passes and "));
}

TEST_CASE("when the timeout passes, the error says what the missing rank does") {
  Lines lines;
  std::mutex mutex;
  std::string error;
  for (const std::string backend : {"gloo", "shm"}) {
    CHECK_THROWS_AS(run(2, lines, {.backend = backend, .timeout = milliseconds(1000)},
                        [&](Communicator& group) {
                          at::Tensor data = at::ones({5});
                          group.all_reduce(data);
                          if (group.rank() == 1) {
                            std::this_thread::sleep_for(milliseconds(2500));
                            return;
                          }
                          try {
                            group.all_reduce(data);
                          } catch (const CommError& caught) {
                            const std::lock_guard lock(mutex);
                            error = caught.what();
                            throw;
                          }
                        }),
                    CommError);
    INFO(backend);
    CHECK_THAT(error, ContainsSubstring(concat("rank 0: all_reduce #2 of Float [5] failed on ", backend)) &&
                          ContainsSubstring("rank 1 has not come: it is in no collective since ") &&
                          ContainsSubstring("the last was all_reduce #1 of Float [5]"));
  }
}

TEST_CASE("messages between ranks carry any layout, and what can't be sent is refused") {
  Lines lines;
  run(3, lines, {.backend = test::thread_backend(), .timeout = std::chrono::seconds(30)},
      [](Communicator& group) {
        const auto refused = [&](const std::function<void()>& action) {
          try {
            action();
          } catch (const ConfigError&) {
            return true;
          }
          return false;
        };
        at::Tensor data = at::zeros({3});
        if (!refused([&] { group.send(data, group.rank()); }) || !refused([&] { group.receive(data, 3); }) ||
            !refused([&] { group.send(data, (group.rank() + 1) % 3, -1); })) {
          throw std::runtime_error("not refused");
        }
        // A ring, by columns; two tags at once.
        const int next = (group.rank() + 1) % 3;
        const int before = (group.rank() + 2) % 3;
        const at::Tensor mine = at::arange(12, at::kFloat).view({3, 4}) + 100 * group.rank();
        at::Tensor theirs = at::zeros({4, 3}).t();
        at::Tensor number = at::zeros({1}, at::kLong);
        const auto send = [&] {
          group.send(mine, next, 1);
          group.send(at::full({1}, group.rank(), at::kLong), next, 2);
        };
        const auto receive = [&] {
          group.receive(theirs, before, 1);
          group.receive(number, before, 2);
        };
        if (group.rank() == 0) {
          send();
          receive();
        } else {
          receive();
          send();
        }
        if (!theirs.equal(mine - 100 * group.rank() + 100 * before) || number.item<int64_t>() != before) {
          throw std::runtime_error("wrong message");
        }
      });
}

TEST_CASE("a message of another size or dtype than expected is an error that says both, on every back end") {
  for (const std::string backend : {"gloo", "shm"}) {
    std::mutex mutex;
    std::string error;
    test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
      Logger logger(rank, LogLevel::kOff);
      const auto group = make_communicator(store.share(), rank, 2, true,
                                           {.backend = backend, .timeout = milliseconds(2000)}, logger);
      try {
        if (rank == 0) {
          group->send(at::ones({7}, at::kDouble), 1);
        } else {
          at::Tensor data = at::ones({4});
          group->receive(data, 0);
        }
      } catch (const Error& caught) {
        const std::lock_guard lock(mutex);
        if (rank == 1) error = caught.what();
      }
      if (backend != "gloo") return;
      // The next message is not the one that was refused.
      at::Tensor data = at::full({4}, 5 * (1 - rank), at::kFloat);
      rank == 0 ? group->send(data, 1) : group->receive(data, 0);
      if (data[3].item<float>() != 5) throw std::runtime_error("wrong message after a refused one");
    });
    INFO(backend << ": " << error);
    CHECK_THAT(error,
               ContainsSubstring("16") || (ContainsSubstring("Float [4]") && ContainsSubstring("Double")));
  }
}

TEST_CASE("a notice time of 0 and one without end mean that nothing is told") {
  for (const milliseconds notice : {milliseconds(0), milliseconds::max()}) {
    Lines lines;
    std::string error;
    CHECK_THROWS_AS(
        run(2, lines,
            {.backend = test::thread_backend(), .timeout = milliseconds(1500), .watchdog_notice = notice},
            [&](Communicator& group) {
              if (group.rank() == 1) return std::this_thread::sleep_for(milliseconds(2500));
              try {
                group.barrier();
              } catch (const CommError& caught) {
                error = caught.what();
                throw;
              }
            }),
        CommError);
    CHECK(lines.of(0).empty());
    CHECK_THAT(error, ContainsSubstring("rank 1 has not come"));
  }
}
