// The shm back end against Gloo: the same inputs to both, threads as ranks.
#include <c10/core/Allocator.h>

#include <random>
#include <set>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/bucket_memory.h"
#include "accelerate/comm/communicator.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;

namespace {

using Tensors = std::vector<at::Tensor>;
using Op = c10d::ReduceOp::RedOpType;

// Both back ends of one rank.
struct Pair {
  c10::intrusive_ptr<c10d::Backend> shm;
  c10::intrusive_ptr<c10d::Backend> gloo;
  int rank;
  int size;
};

c10::intrusive_ptr<c10d::Backend> make(const char* name, const Store& store, int rank, int size,
                                       const std::string& prefix = {},
                                       std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const accelerate::detail::BackendRequest request{
      .store = c10::make_intrusive<c10d::PrefixStore>(prefix + name, store.c10d_store()),
      .rank = rank,
      .size = size,
      .timeout = timeout,
      .master_addr = "127.0.0.1"};
  return accelerate::detail::find_backend(name)->make(request);
}

void with_pairs(int size, const std::function<void(Pair&)>& body) {
  test::run_threads(size, [&](int rank, const Store& store, const std::string&) {
    Pair pair{make("shm", store, rank, size), make("gloo", store, rank, size), rank, size};
    body(pair);
    pair.gloo->barrier()->wait();
  });
}

// Catch's assertions are not thread-safe, so ranks throw instead.
void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

// Numbers that every rank can make for every rank: small integers, some halves in floating types.
at::Tensor values(at::ScalarType type, at::IntArrayRef sizes, uint64_t seed, int rank) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  at::Tensor out = at::empty(sizes, at::kDouble);
  auto* data = out.mutable_data_ptr<double>();
  const bool floating = at::isFloatingType(type);
  for (int64_t i = 0; i < out.numel(); ++i) {
    const auto number = static_cast<int64_t>(random() % 9);
    data[i] = floating ? static_cast<double>(number - 4) / 3
                       : static_cast<double>(number) - (type == at::kByte ? 0 : 4);
  }
  return type == at::kBool ? out.gt(0) : out.to(type);
}

// One of the ways in which a tensor lies in memory.
at::Tensor laid_out(const at::Tensor& tensor, int layout) {
  at::Tensor out;
  switch (layout) {
    case 1: {  // every other element
      std::vector<int64_t> strides = tensor.contiguous().strides().vec();
      for (int64_t& stride : strides) stride *= 2;
      return at::empty({tensor.numel() * 2 + 1}, tensor.options())
          .as_strided(tensor.sizes(), strides)
          .copy_(tensor);
    }
    case 2:  // transposed
      if (tensor.dim() < 2) return tensor.clone();
      return tensor.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
    case 3:  // in the middle of a storage
      out =
          at::empty({tensor.numel() + 7}, tensor.options()).narrow(0, 3, tensor.numel()).view(tensor.sizes());
      out.copy_(tensor);
      return out;
    default:
      return tensor.clone();
  }
}

struct Case {
  at::ScalarType type;
  std::vector<int64_t> sizes;
  int layout;
  uint64_t seed;
  int root;
};

Case random_case(std::mt19937_64& random, int size) {
  static const at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                          at::kByte,  at::kInt,    at::kLong, at::kBool};
  static const int64_t kLengths[] = {0, 1, 2, 7, 33, 64, 257, 1000, 4097};
  Case out;
  out.type = kTypes[random() % std::size(kTypes)];
  const int64_t dims = static_cast<int64_t>(random() % 3);
  for (int64_t d = 0; d < dims; ++d) out.sizes.push_back(kLengths[random() % (d == 0 ? 9 : 5)]);
  if (random() % 40 == 0) out.sizes = {700000 + static_cast<int64_t>(random() % 100)};
  out.layout = static_cast<int>(random() % 4);
  out.seed = random();
  out.root = static_cast<int>(random() % static_cast<uint64_t>(size));
  return out;
}

std::string text(const Case& c) {
  std::ostringstream out;
  out << c10::toString(c.type) << ' ' << at::IntArrayRef(c.sizes) << " layout " << c.layout << " root "
      << c.root;
  return out.str();
}

Tensors all_values(const Case& c, int size) {
  Tensors out;
  for (int rank = 0; rank < size; ++rank) out.push_back(values(c.type, c.sizes, c.seed, rank));
  return out;
}

// Gloo sums half and bfloat16 with a rounding after each addition, and bools as bytes: their right answer
// comes from a wider type.
bool gloo_is_exact(at::ScalarType type) {
  return type != at::kHalf && type != at::kBFloat16 && type != at::kBool;
}

at::Tensor expected(const Case& c, Op op, Pair& pair) {
  const Tensors all = all_values(c, pair.size);
  if (gloo_is_exact(c.type) && op != c10d::ReduceOp::AVG) {
    Tensors mine = {all[static_cast<size_t>(pair.rank)].clone()};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    pair.gloo->allreduce(mine, options)->wait();
    return mine[0];
  }
  const at::ScalarType wide = c.type == at::kBool     ? at::kBool
                              : c.type == at::kDouble ? at::kDouble
                                                      : at::kFloat;
  at::Tensor out = all[0].to(wide);
  for (size_t i = 1; i < all.size(); ++i) {
    const at::Tensor next = all[i].to(wide);
    if (c.type == at::kBool) {
      const bool any = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MAX || op == c10d::ReduceOp::BOR;
      out = op == c10d::ReduceOp::BXOR ? out.logical_xor(next)
            : any                      ? out.logical_or(next)
                                       : out.logical_and(next);
    } else if (op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG) {
      out = out + next;
    } else if (op == c10d::ReduceOp::PRODUCT) {
      out = out * next;
    } else {
      out = op == c10d::ReduceOp::MIN ? at::minimum(out, next) : at::maximum(out, next);
    }
  }
  if (op == c10d::ReduceOp::AVG) out = out / pair.size;
  return out.to(c.type);
}

Op random_op(at::ScalarType type, std::mt19937_64& random) {
  static const Op kFloating[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                                 c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  static const Op kIntegral[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN,
                                 c10d::ReduceOp::MAX, c10d::ReduceOp::BAND,    c10d::ReduceOp::BOR,
                                 c10d::ReduceOp::BXOR};
  const uint64_t at = random();
  return at::isFloatingType(type) ? kFloating[at % std::size(kFloating)]
                                  : kIntegral[at % std::size(kIntegral)];
}

bool same(const at::Tensor& got, const at::Tensor& want) {
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) return false;
  if (got.scalar_type() == at::kFloat || got.scalar_type() == at::kDouble) {
    return at::allclose(got, want, 1e-5, 1e-6);
  }
  return got.equal(want);
}

void fuzz_reductions(Pair& pair, std::mt19937_64& random, const Case& c) {
  const Op op = random_op(c.type, random);
  const at::Tensor want = expected(c, op, pair);
  const std::string what = concat(" by ", static_cast<int>(op), " of ", text(c));
  const at::Tensor mine = values(c.type, c.sizes, c.seed, pair.rank);
  {
    Tensors tensors = {laid_out(mine, c.layout)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    const auto work = pair.shm->allreduce(tensors, options);
    expect(same(tensors[0], want), "allreduce" + what);
    expect(work->isCompleted() && work->isSuccess() && work->wait(), "work of allreduce");
    expect(work->result()[0].is_same(tensors[0]), "result of allreduce");
    expect(work->getFuture()->value().toTensorVector()[0].is_same(tensors[0]), "future of allreduce");
  }
  {
    Tensors tensors = {laid_out(mine, c.layout)};
    c10d::ReduceOptions options;
    options.reduceOp = op;
    options.rootRank = c.root;
    pair.shm->reduce(tensors, options)->wait();
    expect(same(tensors[0], pair.rank == c.root ? want : mine), "reduce" + what);
  }
  {
    Tensors tensors = {laid_out(mine, c.layout), laid_out(mine, 0), at::empty({0}, mine.options())};
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = op;
    pair.shm->allreduce_coalesced(tensors, options)->wait();
    expect(same(tensors[0], want) && same(tensors[1], want), "allreduce_coalesced" + what);
  }
  // reduce_scatter of rank-many parts: part r is what all_reduce of that part would give.
  Tensors inputs;
  at::Tensor part;
  for (int r = 0; r < pair.size; ++r) {
    Case of_part = c;
    of_part.seed = c.seed + static_cast<uint64_t>(r);
    inputs.push_back(values(c.type, c.sizes, of_part.seed, pair.rank));
    const at::Tensor reduced = expected(of_part, op, pair);
    if (r == pair.rank) part = reduced;
  }
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  {
    Tensors outputs = {laid_out(at::zeros_like(mine), c.layout)};
    std::vector<Tensors> lists = {inputs};
    for (at::Tensor& input : lists[0]) input = laid_out(input, c.layout);
    pair.shm->reduce_scatter(outputs, lists, options)->wait();
    expect(same(outputs[0], part), "reduce_scatter" + what);
  }
  at::Tensor joined = laid_out(at::stack(inputs), c.layout);
  at::Tensor output = laid_out(at::zeros_like(mine), c.layout);
  pair.shm->_reduce_scatter_base(output, joined, options)->wait();
  expect(same(output, part), "_reduce_scatter_base" + what);
}

void fuzz_movements(Pair& pair, const Case& c) {
  const Tensors all = all_values(c, pair.size);
  const at::Tensor& mine = all[static_cast<size_t>(pair.rank)];
  const auto size = static_cast<size_t>(pair.size);
  const std::string what = " of " + text(c);
  const auto empties = [&] {
    Tensors out;
    for (size_t i = 0; i < size; ++i) out.push_back(laid_out(at::zeros_like(mine), c.layout));
    return out;
  };
  const auto equal = [&](const Tensors& got) {
    for (size_t i = 0; i < size; ++i) {
      if (!got[i].equal(all[i])) return false;
    }
    return true;
  };
  {
    Tensors ours = {laid_out(mine, c.layout)};
    Tensors theirs = {mine.clone()};
    c10d::BroadcastOptions options;
    options.rootRank = c.root;
    pair.shm->broadcast(ours, options)->wait();
    pair.gloo->broadcast(theirs, options)->wait();
    expect(ours[0].equal(theirs[0]) && ours[0].equal(all[static_cast<size_t>(c.root)]), "broadcast" + what);
  }
  Tensors inputs = {laid_out(mine, c.layout)};
  {
    std::vector<Tensors> outputs = {empties()};
    pair.shm->allgather(outputs, inputs)->wait();
    expect(equal(outputs[0]), "allgather" + what);
    at::Tensor joined = laid_out(at::zeros_like(at::stack(all)), c.layout);
    pair.shm->_allgather_base(joined, inputs[0])->wait();
    expect(joined.equal(at::stack(all)), "_allgather_base" + what);
  }
  {
    std::vector<Tensors> outputs;
    if (pair.rank == c.root) outputs.push_back(empties());
    c10d::GatherOptions options;
    options.rootRank = c.root;
    pair.shm->gather(outputs, inputs, options)->wait();
    if (pair.rank == c.root) expect(equal(outputs[0]), "gather" + what);
  }
  {
    Tensors outputs = {laid_out(at::zeros_like(mine), c.layout)};
    std::vector<Tensors> lists;
    if (pair.rank == c.root) {
      lists.emplace_back();
      for (const at::Tensor& tensor : all) lists[0].push_back(laid_out(tensor, c.layout));
    }
    c10d::ScatterOptions options;
    options.rootRank = c.root;
    pair.shm->scatter(outputs, lists, options)->wait();
    expect(outputs[0].equal(mine), "scatter" + what);
  }
  {
    // Rank p sends p + q + k rows to q.
    const int64_t extra = static_cast<int64_t>(c.seed % 50);
    std::vector<int64_t> sent;
    std::vector<int64_t> taken;
    int64_t sent_rows = 0;
    int64_t taken_rows = 0;
    for (int q = 0; q < pair.size; ++q) {
      sent.push_back(extra % (q + 2) + pair.rank);
      taken.push_back(extra % (pair.rank + 2) + q);
      sent_rows += sent.back();
      taken_rows += taken.back();
    }
    at::Tensor from = laid_out(values(c.type, {sent_rows, 5}, c.seed, pair.rank), c.layout);
    at::Tensor ours = laid_out(values(c.type, {taken_rows, 5}, 1, 0).zero_(), c.layout);
    at::Tensor theirs = at::zeros({taken_rows, 5}, ours.options());
    at::Tensor plain = from.contiguous();
    pair.shm->alltoall_base(ours, from, taken, sent)->wait();
    auto taken_copy = taken;  // Gloo may change them
    auto sent_copy = sent;
    pair.gloo->alltoall_base(theirs, plain, taken_copy, sent_copy)->wait();
    expect(ours.equal(theirs), "alltoall_base" + what);
    Tensors pieces = from.split_with_sizes(sent);
    Tensors got;
    for (const int64_t rows : taken) got.push_back(at::zeros({rows, 5}, ours.options()));
    pair.shm->alltoall(got, pieces)->wait();
    expect(at::cat(got).equal(theirs), "alltoall" + what);
  }
  pair.shm->barrier()->wait();
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
    pair.shm->allreduce(complex)->wait();
    expect(complex[0].equal(at::full({5}, c10::complex<float>(2, 1), at::kComplexFloat)), "complex");

    const auto index = at::full({1, 1}, pair.rank, at::kLong);
    Tensors sparse = {at::sparse_coo_tensor(index, at::ones({1}), {3})};
    const auto work = pair.shm->allreduce(sparse);
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
    expect(message([&] { pair.shm->allreduce(ints, average); }).find("averages of floating types") !=
               std::string::npos,
           "average of integers");
    Tensors two = {at::ones({1}), at::ones({1})};
    expect(message([&] { pair.shm->allreduce(two); }).find("expected one tensor") != std::string::npos,
           "two tensors");
  });
}

TEST_CASE("parameters that need gradients can be moved and reduced") {
  with_pairs(2, [](Pair& pair) {
    at::Tensor leaf = at::full({3, 2}, pair.rank + 1.0).t().detach().set_requires_grad(true);
    Tensors tensors = {leaf};
    pair.shm->allreduce(tensors)->wait();
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
