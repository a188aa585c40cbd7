// The shm back end against Gloo: the same inputs to both, threads as ranks.
#include <c10/core/Allocator.h>

#include <set>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/bucket_memory.h"
#include "accelerate/comm/communicator.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "support/backend_fuzz.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

void with_pairs(int size, const std::function<void(Pair&)>& body) {
  test::run_threads(size, [&](int rank, const Store& store, const std::string&) {
    Pair pair{.tested = make("shm", store, rank, size),
              .gloo = make("gloo", store, rank, size),
              .rank = rank,
              .size = size};
    body(pair);
    pair.gloo->barrier()->wait();
  });
}

double total_loss(Accelerator& accelerator, int steps) {
  torch::nn::Sequential net(torch::nn::Linear(40, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()).to(torch::kFloat)).view(parameter.sizes()) /
                      8);
    }
  }
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  double total = 0;
  for (int step = 0; step < steps; ++step) {
    const auto x = torch::cos(torch::arange(80).to(torch::kFloat) + 100 * accelerator.process_index() + step);
    optimizer.zero_grad();
    auto loss = model->forward(x.view({2, 40})).pow(2).mean();
    accelerator.backward(loss);
    optimizer.step();
    total += accelerator.reduce(loss.detach()).template item<double>();
  }
  return total;
}

}  // namespace

TEST_CASE("shm gives what Gloo gives: every operation and dtype, odd sizes, any layout, 1 to 8 ranks") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    const int cases = size > 4 ? 25 : 60;
    with_pairs(size, [&](Pair& pair) {
      std::mt19937_64 random(static_cast<uint64_t>(size));
      for (int i = 0; i < cases; ++i) {
        const Case c = random_case(random, size);
        fuzz_movements(pair, c);
        fuzz_reductions(pair, random, c);
      }
    });
    std::printf("shm against gloo: %d ranks took part, %d cases each\n", size, cases);
  }
}

TEST_CASE("complex sums, sparse sums, and what can't be reduced") {
  with_pairs(2, [](Pair& pair) {
    Tensors complex = {
        at::full({5}, c10::complex<float>(1, static_cast<float>(pair.rank)), at::kComplexFloat)};
    pair.tested->allreduce(complex)->wait();
    expect(complex[0].equal(at::full({5}, c10::complex<float>(2, 1), at::kComplexFloat)), "complex");

    const auto index = at::full({1, 1}, pair.rank, at::kLong);
    Tensors sparse = {at::sparse_coo_tensor(index, at::ones({1}), {3})};
    const auto work = pair.tested->allreduce(sparse);
    work->wait();
    expect(work->result()[0].to_dense().equal(torch::tensor({1.0F, 1.0F, 0.0F})), "sparse");

    const auto message = [](const std::function<void()>& action) -> std::string {
      try {
        action();
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    Tensors ints = {at::ones({2}, at::kLong)};
    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    expect(message([&] { pair.tested->allreduce(ints, average); }).find("averages of floating types") !=
               std::string::npos,
           "average of integers");
    Tensors two = {at::ones({1}), at::ones({1})};
    expect(message([&] { pair.tested->allreduce(two); }).find("expected one tensor") != std::string::npos,
           "two tensors");
  });
}

TEST_CASE("parameters that need gradients can be moved and reduced") {
  with_pairs(2, [](Pair& pair) {
    at::Tensor leaf = at::full({3, 2}, pair.rank + 1.0).t().detach().set_requires_grad(true);
    Tensors tensors = {leaf};
    pair.tested->allreduce(tensors)->wait();
    expect(leaf.detach().equal(at::full({2, 3}, 3.0)) && !leaf.grad_fn(), "leaf");
  });
}

TEST_CASE("messages: both ways at once, larger than the ring, out of order of tags, from any rank") {
  for (const int size : {2, 3, 5}) {
    test::run_threads(size, [ranks = size](int rank, const Store& store, const std::string&) {
      auto shm = make("shm", store, rank, ranks);
      const auto value = [](int from, int to, int tag, int64_t count) {
        return at::arange(count, at::kFloat) + (100 * from + 10 * to + tag);
      };
      for (const int64_t count : {0, 1, 1000, 300000}) {
        std::vector<c10::intrusive_ptr<c10d::Work>> works;
        std::vector<std::pair<at::Tensor, at::Tensor>> checks;
        for (int peer = 0; peer < ranks; ++peer) {
          if (peer == rank) continue;
          for (int tag = 0; tag < 3; ++tag) {
            Tensors out = {laid_out(value(rank, peer, tag, count + tag), tag)};
            works.push_back(shm->send(out, peer, tag));
          }
        }
        for (int peer = ranks - 1; peer >= 0; --peer) {
          if (peer == rank) continue;
          for (int tag = 2; tag >= 0; --tag) {
            Tensors in = {laid_out(at::zeros({count + tag}), tag)};
            works.push_back(shm->recv(in, peer, tag));
            checks.emplace_back(in[0], value(peer, rank, tag, count + tag));
          }
        }
        Tensors sum = {at::ones({2000})};
        shm->allreduce(sum)->wait();  // collectives and messages don't disturb each other
        for (const auto& work : works) work->wait();
        for (const auto& [got, want] : checks) expect(got.equal(want), concat("message of ", want.numel()));
      }
      // Any source: rank 0 hears each of the others once.
      if (rank > 0) {
        Tensors out = {at::full({4}, rank, at::kFloat)};
        shm->send(out, 0, 9)->wait();
      } else {
        std::set<int> heard;
        for (int peer = 1; peer < ranks; ++peer) {
          Tensors in = {at::zeros({4})};
          const auto work = shm->recvAnysource(in, 9);
          work->wait();
          expect(in[0].equal(at::full({4}, work->sourceRank(), at::kFloat)), "any source");
          expect(work->getFuture()->completed(), "future");
          heard.insert(work->sourceRank());
        }
        expect(static_cast<int>(heard.size()) == ranks - 1, "each once");
      }
      shm->barrier()->wait();
    });
  }
}

TEST_CASE("a message that never comes, of another size, or from a rank that left is an error that says so") {
  std::vector<std::string> messages(3);
  std::atomic<bool> done = false;
  test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
    const auto error_of = [](const c10::intrusive_ptr<c10d::Work>& work) -> std::string {
      try {
        work->wait();
      } catch (const std::exception& error) {
        return error.what();
      }
      return "no error";
    };
    auto shm = make("shm", store, rank, 2, "", std::chrono::milliseconds(400));
    Tensors in = {at::zeros({4})};
    if (rank == 1) {
      Tensors out = {at::ones({5})};
      shm->send(out, 0, 1)->wait();
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    messages[0] = error_of(shm->recv(in, 1, 7));
    messages[1] = error_of(shm->recv(in, 1, 1));
    done = true;
    messages[2] = error_of(shm->recv(in, 1, 8));
  });
  CHECK_THAT(messages[0],
             ContainsSubstring("tag 7 from rank 1") && ContainsSubstring("nothing came in time"));
  CHECK_THAT(messages[1], ContainsSubstring("expected 16 bytes, got 20 bytes"));
  CHECK_THAT(messages[2], ContainsSubstring("rank 1 left after"));
}

TEST_CASE("several groups at once, sub-groups among them, used in turn") {
  test::run_threads(4, [](int rank, const Store& store, const std::string&) {
    auto all = make("shm", store, rank, 4, "all");
    auto half = make("shm", store, rank / 2, 2, concat("half", rank % 2));
    auto back = make("shm", store, 3 - rank, 4, "back");
    for (int i = 0; i < 50; ++i) {
      Tensors a = {at::full({100 + i * 37}, rank + i)};
      all->allreduce(a)->wait();
      expect(a[0].equal(at::full({100 + i * 37}, 6 + 4 * i)), "all");
      Tensors b = {at::full({9000}, rank)};
      half->allreduce(b)->wait();
      expect(b[0].equal(at::full({9000}, rank % 2 == 0 ? 2 : 4)), "half");
      Tensors c = {at::full({3}, rank)};
      c10d::BroadcastOptions options;
      options.rootRank = i % 4;
      back->broadcast(c, options)->wait();
      expect(c[0].equal(at::full({3}, 3 - i % 4)), "back");
    }
  });
}

TEST_CASE("two groups driven by two threads of each rank at the same time") {
  test::run_threads(3, [](int rank, const Store& store, const std::string&) {
    auto first = make("shm", store, rank, 3, "first");
    auto second = make("shm", store, rank, 3, "second");
    std::exception_ptr error;
    std::thread other([&] {
      try {
        for (int i = 0; i < 200; ++i) {
          Tensors tensors = {at::full({i * 11}, rank)};
          second->allreduce(tensors)->wait();
          expect(tensors[0].equal(at::full({i * 11}, 3)), "second");
        }
      } catch (...) {
        error = std::current_exception();
      }
    });
    for (int i = 0; i < 200; ++i) {
      Tensors tensors = {at::full({5000 - i}, rank + 1)};
      first->allreduce(tensors)->wait();
      expect(tensors[0].equal(at::full({5000 - i}, 6)), "first");
    }
    other.join();
    if (error) std::rethrow_exception(error);
  });
}

TEST_CASE("tensors made in bucket memory are reduced in place, and the allocator is put back") {
  c10::Allocator* const before = c10::GetAllocator(at::kCPU);
  test::run_threads(3, [](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    const auto comm = make_communicator(store.share(), rank, 3, true, {.backend = "shm"}, logger);
    for (int round = 0; round < 3; ++round) {
      at::Tensor inside;
      at::Tensor small;
      at::Tensor too_large;
      {
        const auto memory = comm->bucket_memory(400000);
        expect(memory != nullptr, "no bucket memory");
        if (rank == 1) small = at::ones({5});  // offsets need not agree
        inside = at::full({50000}, rank);
        too_large = at::full({100000}, rank);
      }
      const at::Tensor outside = at::full({50000}, rank);
      // The memory outlives the scope, and the communicator's other operations.
      for (int i = 0; i < 3; ++i) {
        inside.fill_(rank + i);
        comm->all_reduce(inside);
        expect(inside.equal(at::full({50000}, 3 + 3 * i)), "inside");
        at::Tensor part = inside.narrow(0, 1001, 30001);
        part.fill_(rank);
        comm->all_reduce(part);
        expect(part.equal(at::full({30001}, 3)) && inside[1000].item<float>() == 3 + 3 * i, "part");
        too_large.fill_(rank);
        comm->all_reduce(too_large);
        expect(too_large.equal(at::full({100000}, 3)), "too large");
        at::Tensor mixed = rank == i ? outside.clone() : inside;
        mixed.fill_(rank + 1);
        comm->all_reduce(mixed);
        expect(mixed.equal(at::full({50000}, 6)), "mixed");
      }
      inside.resize_({200000});  // grows into ordinary memory
      expect(inside.numel() == 200000, "resize");
    }
  });
  CHECK(c10::GetAllocator(at::kCPU) == before);
}

TEST_CASE("DDP trains equally on shm and Gloo, also with unused parameters looked for") {
  for (const int size : {2, 3}) {
    for (const bool find_unused : {false, true}) {
      const auto losses = [&](const char* backend) {
        std::vector<double> out(static_cast<size_t>(size));
        test::run_threads(size, [&](int rank, const Store& store, const std::string& job_id) {
          AcceleratorOptions options;
          options.ddp.find_unused_parameters = find_unused;
          options = test::thread_rank_options(store, rank, size, job_id, options);
          Store own(c10::make_intrusive<c10d::PrefixStore>("own", store.c10d_store()));
          options.communicator =
              make_communicator(std::move(own), rank, size, true,
                                {.backend = backend, .timeout = options.timeout}, *options.logger);
          Accelerator accelerator(options);
          out[static_cast<size_t>(rank)] = total_loss(accelerator, 8);
        });
        for (const double loss : out) CHECK(loss == out[0]);
        return out[0];
      };
      CHECK(losses("shm") == Approx(losses("gloo")).epsilon(1e-6));
    }
  }
}

TEST_CASE("auto takes shm where the ranks share a machine, and says where it can't be had") {
  test::run_threads(2, [](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    expect(make_communicator(store.share(), rank, 2, true, {}, logger)->backend_name() == "shm", "auto");
  });
  Logger logger(0, LogLevel::kOff);
  CHECK_THROWS_WITH(make_communicator(make_in_memory_store(), 0, 2, false, {.backend = "shm"}, logger),
                    ContainsSubstring("expected all ranks on one machine"));
}

TEST_CASE("a peer that left shm is named by the communicator") {
  std::string message;
  test::run_threads(2, [&](int rank, const Store& store, const std::string&) {
    Logger logger(rank, LogLevel::kOff);
    auto comm = make_communicator(store.share(), rank, 2, true,
                                  {.backend = "shm", .timeout = std::chrono::seconds(50)}, logger);
    at::Tensor value = at::ones({4});
    comm->all_reduce(value);
    if (rank == 1) return;
    try {
      comm->all_reduce(value);
    } catch (const CommError& error) {
      message = error.what();
    }
  });
  CHECK_THAT(message, ContainsSubstring("all_reduce #2 of Float [4] failed on shm") &&
                          ContainsSubstring("rank 1 left after 1 collective"));
}
