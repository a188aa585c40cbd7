// A rank for tests of the back end mpi, started by mpirun. Usage: mpi_torch WHAT [ARGUMENTS]; see main().
#include <mpi.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <iomanip>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/comm/communicator.h"
#include "accelerate/comm/mpi_backend_internal.h"
#include "accelerate/environment/registry.h"
#include "rank_program.h"
#include "support/backend_fuzz.h"

using namespace accelerate;
using namespace accelerate::test;
using namespace accelerate::test::fuzz;
using accelerate::testing::say;

namespace {

using Words = std::vector<std::string>;

int64_t number(const Words& words, size_t at) {
  return parse_int(words.at(at)).value();
}

// This rank's place and a store that all ranks share.
struct Job {
  Topology topology = detect_topology(EnvVars::from_process());
  Logger logger{topology.rank, LogLevel::kWarning};
  std::shared_ptr<Communicator> gloo =
      make_communicator(topology, {.backend = "gloo", .timeout = std::chrono::seconds(60)}, logger);
  Store store = gloo->store() != nullptr ? gloo->store()->share() : make_in_memory_store();
  int rank = topology.rank;
  int size = topology.world_size;

  c10::intrusive_ptr<c10d::Backend> mpi(const std::string& prefix = {},
                                        size_t largest_count = size_t{1} << 30,
                                        std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    return sub_group(rank, size, prefix, largest_count, timeout);
  }
  c10::intrusive_ptr<c10d::Backend> sub_group(
      int sub_rank, int sub_size, const std::string& prefix, size_t largest_count = size_t{1} << 30,
      std::chrono::milliseconds timeout = std::chrono::seconds(60)) const {
    const accelerate::detail::BackendRequest request{
        .store = c10::make_intrusive<c10d::PrefixStore>(prefix + "mpi", store.c10d_store()),
        .rank = sub_rank,
        .size = sub_size,
        .timeout = timeout};
    return accelerate::detail::make_mpi_backend(request, largest_count);
  }
  Pair pair(size_t largest_count = size_t{1} << 30) const {
    return {.tested = mpi({}, largest_count),
            .gloo = make("gloo", store, rank, size, "fuzz/"),  // the store has a group of that name already
            .rank = rank,
            .size = size,
            .exact_halves = false};
  }
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void expect_error(const std::string& part, const std::function<void()>& action) {
  const std::string text = error_of(action);
  expect(text.find(part) != std::string::npos, concat("expected an error with '", part, "', got: ", text));
}

// fuzz CASES LARGEST_COUNT
void fuzz_all(const Words& words) {
  const Job job;
  Pair pair = job.pair(static_cast<size_t>(number(words, 1)));
  std::mt19937_64 random(static_cast<uint64_t>(job.size));
  const int64_t cases = number(words, 0);
  for (int64_t i = 0; i < cases; ++i) {
    const Case c = random_case(random, job.size);
    fuzz_movements(pair, c);
    fuzz_reductions(pair, random, c);
  }
  pair.gloo->barrier()->wait();
}

// The cases that fuzz does not have.
void special(const Words&) {
  const Job job;
  Pair pair = job.pair();
  const int size = job.size;
  const auto sum_of = [&](const std::function<float(int)>& each) {
    float out = 0;
    for (int rank = 0; rank < size; ++rank) out += each(rank);
    return out;
  };
  const auto own = static_cast<float>(job.rank);
  {
    Tensors complex = {at::full({5}, c10::complex<float>(1, own), at::kComplexFloat)};
    pair.tested->allreduce(complex)->wait();
    const float imaginary = sum_of([](int rank) { return static_cast<float>(rank); });
    expect(complex[0].equal(
               at::full({5}, c10::complex<float>(static_cast<float>(size), imaginary), at::kComplexFloat)),
           "complex");
  }
  {
    const auto index = at::full({1, 1}, job.rank, at::kLong);
    Tensors sparse = {at::sparse_coo_tensor(index, at::ones({1}), {size + 1})};
    const auto work = pair.tested->allreduce(sparse);
    work->wait();
    at::Tensor want = at::ones({size + 1});
    want[size] = 0;
    expect(work->result()[0].to_dense().equal(want), "sparse");
  }
  {
    at::Tensor leaf = at::full({3, 2}, own + 1).t().detach().set_requires_grad(true);
    Tensors tensors = {leaf};
    pair.tested->allreduce(tensors)->wait();
    const float want = sum_of([](int rank) { return static_cast<float>(rank + 1); });
    expect(leaf.detach().equal(at::full({2, 3}, want)) && !leaf.grad_fn(), "leaf");
  }
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const auto op : {c10d::ReduceOp::MIN, c10d::ReduceOp::MAX}) {
      at::Tensor tensor = at::arange(20, at::kFloat) + own;
      tensor[3 + job.rank] = std::numeric_limits<float>::quiet_NaN();
      Tensors tensors = {tensor.to(type)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      pair.tested->allreduce(tensors, options)->wait();
      expect(tensors[0].isnan().sum().item<int64_t>() == size, "a NaN of any rank must stay one");
    }
  }
  {
    // An overflow of fp16 is infinite, and bf16 has none there.
    Tensors half = {at::full({9}, 60000, at::kHalf)};
    Tensors bfloat = {at::full({9}, 60000, at::kBFloat16)};
    pair.tested->allreduce(half)->wait();
    pair.tested->allreduce(bfloat)->wait();
    expect(half[0].isinf().all().item<bool>() == (size > 1) && bfloat[0].isfinite().all().item<bool>(),
           "overflow");
  }
  {
    // A rank's part within the whole, as engines that shard have it.
    at::Tensor whole = at::zeros({size, 3});
    at::Tensor part = whole[job.rank];
    part.fill_(own + 1);
    pair.tested->_allgather_base(whole, part)->wait();
    expect(whole.select(1, 0).equal(at::arange(1, size + 1).to(at::kFloat)), "all_gather in place");
    at::Tensor all = at::ones({size, 3});
    at::Tensor mine = all[job.rank];
    pair.tested->_reduce_scatter_base(mine, all)->wait();
    expect(mine.eq(size).all().item<bool>(), "reduce_scatter in place");
  }
  {
    // Short integers, which Gloo does not take.
    Tensors tensors = {at::full({7}, 100, at::kShort)};
    pair.tested->allreduce(tensors)->wait();
    expect(tensors[0].equal(at::full({7}, 100 * size, at::kShort)), "int16");
  }
  {
    // Parts of different sizes.
    std::vector<Tensors> outputs(1);
    Tensors want;
    for (int rank = 0; rank < size; ++rank) {
      want.push_back(at::full({3 * rank, 2}, rank, at::kFloat));
      outputs[0].push_back(laid_out(at::zeros({3 * rank, 2}), rank % 4));
    }
    Tensors inputs = {want[static_cast<size_t>(job.rank)].clone()};
    pair.tested->allgather(outputs, inputs)->wait();
    for (int rank = 0; rank < size; ++rank)
      expect(outputs[0][static_cast<size_t>(rank)].equal(want[static_cast<size_t>(rank)]),
             "uneven all_gather");
  }
  {
    // Several tensors in one call.
    Tensors inputs = {at::full({4}, own), at::full({2, 3}, job.rank, at::kLong)};
    std::vector<Tensors> lists(static_cast<size_t>(size));
    for (Tensors& list : lists) list = {at::zeros({4}), at::zeros({2, 3}, at::kLong)};
    pair.tested->allgather_coalesced(lists, inputs)->wait();
    Tensors joined = {at::zeros({size * 4}), at::zeros({size * 2, 3}, at::kLong)};
    pair.tested->allgather_into_tensor_coalesced(joined, inputs)->wait();
    for (int rank = 0; rank < size; ++rank) {
      const Tensors& list = lists[static_cast<size_t>(rank)];
      expect(list[0].eq(rank).all().item<bool>() && list[1].eq(rank).all().item<bool>(), "coalesced lists");
      expect(joined[0].narrow(0, rank * 4, 4).eq(rank).all().item<bool>() &&
                 joined[1].narrow(0, rank * 2, 2).eq(rank).all().item<bool>(),
             "coalesced all_gather");
    }
    Tensors outputs = {at::zeros({4}), at::zeros({2, 3}, at::kLong)};
    pair.tested->reduce_scatter_tensor_coalesced(outputs, joined)->wait();
    expect(outputs[0].eq(job.rank * size).all().item<bool>() &&
               outputs[1].eq(job.rank * size).all().item<bool>(),
           "coalesced reduce_scatter");
  }
  Tensors ints = {at::ones({2}, at::kLong)};
  c10d::AllreduceOptions average;
  average.reduceOp = c10d::ReduceOp::AVG;
  expect_error("averages of floating types", [&] { pair.tested->allreduce(ints, average); });
  Tensors two = {at::ones({1}), at::ones({1})};
  expect_error("expected one tensor", [&] { pair.tested->allreduce(two); });
  pair.tested->monitoredBarrier({}, false);
  pair.gloo->barrier()->wait();
}

// Operations that nobody waits for before the next begins.
void overlap(const Words&) {
  const Job job;
  const auto mpi = job.mpi();
  for (int round = 0; round < 20; ++round) {
    std::vector<Tensors> all;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 10; ++i) all.push_back({at::full({1 + i * 20000}, job.rank + i, at::kDouble)});
    for (Tensors& tensors : all) works.push_back(mpi->allreduce(tensors));
    std::atomic<int> called = 0;
    for (const auto& work : works) work->getFuture()->addCallback([&](c10::ivalue::Future&) { ++called; });
    for (size_t i = 0; i < all.size(); ++i) {
      const auto future = works[i]->getFuture();
      future->wait();
      expect(future->value().toTensorVector()[0].is_same(all[i][0]), "value of a future");
      const double want = job.size * (job.size - 1) / 2.0 + static_cast<double>(i) * job.size;
      expect(all[i][0].eq(want).all().item<bool>(), concat("sum ", i, " of round ", round));
      works[i]->wait();
      expect(works[i]->isCompleted() && works[i]->isSuccess(), "work");
    }
    while (called < 10) std::this_thread::yield();
  }
}

// Both ways at once, out of order of tags, from any rank.
void messages(const Words& words) {
  const Job job;
  const auto mpi = job.mpi({}, static_cast<size_t>(number(words, 0)));
  const auto value = [](int from, int to, int tag, int64_t count) {
    return at::arange(count, at::kFloat) + (100 * from + 10 * to + tag);
  };
  for (const int64_t count : {0, 1, 1000, 300000}) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<std::pair<at::Tensor, at::Tensor>> checks;
    for (int peer = 0; peer < job.size; ++peer) {
      for (int tag = 0; tag < 3 && peer != job.rank; ++tag) {
        Tensors out = {laid_out(value(job.rank, peer, tag, count + tag), tag)};
        works.push_back(mpi->send(out, peer, tag));
      }
    }
    for (int peer = job.size - 1; peer >= 0; --peer) {
      for (int tag = 2; tag >= 0 && peer != job.rank; --tag) {
        Tensors in = {laid_out(at::zeros({count + tag}), tag)};
        works.push_back(mpi->recv(in, peer, tag));
        checks.emplace_back(in[0], value(peer, job.rank, tag, count + tag));
      }
    }
    Tensors sum = {at::ones({2000})};
    mpi->allreduce(sum)->wait();  // collectives and messages don't disturb each other
    for (const auto& work : works) work->wait();
    for (const auto& [got, want] : checks) expect(got.equal(want), concat("message of ", want.numel()));
  }
  // Any source: rank 0 hears each of the others once.
  if (job.rank > 0) {
    Tensors out = {at::full({4}, job.rank, at::kFloat)};
    mpi->send(out, 0, 9)->wait();
  } else {
    std::set<int> heard;
    for (int peer = 1; peer < job.size; ++peer) {
      Tensors in = {at::zeros({4})};
      const auto work = mpi->recvAnysource(in, 9);
      work->wait();
      expect(in[0].equal(at::full({4}, work->sourceRank(), at::kFloat)), "any source");
      heard.insert(work->sourceRank());
    }
    expect(static_cast<int>(heard.size()) == job.size - 1, "each once");
  }
  mpi->barrier()->wait();
}

// Messages that never come or have another size; the group goes on.
void wrong_messages(const Words&) {
  const Job job;
  const auto mpi = job.mpi({}, size_t{1} << 30, std::chrono::milliseconds(700));
  if (job.rank == 1) {
    Tensors five = {at::ones({5})};
    Tensors three = {at::ones({3})};
    mpi->send(five, 0, 1)->wait();
    mpi->send(three, 0, 2)->wait();
  }
  if (job.rank == 0) {
    Tensors in = {at::zeros({4})};
    expect_error("recv of 16 bytes with tag 7 from rank 1: nothing came of it within 0.7 s",
                 [&] { mpi->recv(in, 1, 7)->wait(); });
    expect_error("the message is longer than the 16 bytes", [&] { mpi->recv(in, 1, 1)->wait(); });
    expect_error("the message has 12 bytes instead of 16", [&] { mpi->recv(in, 1, 2)->wait(); });
    expect_error("a tag from 0 to", [&] { mpi->recv(in, 1, -3)->wait(); });
    expect_error("number of another rank", [&] { mpi->recv(in, 0, 3); });
  }
  job.gloo->barrier();
  Tensors sum = {at::ones({3})};
  mpi->allreduce(sum)->wait();
  expect(sum[0].equal(at::full({3}, job.size, at::kFloat)), "sum after late messages");
}

// Several groups, sub-groups among them, used in turn, then by two threads.
void groups(const Words&) {
  const Job job;
  const auto all = job.mpi("all");
  const auto half = job.sub_group(job.rank / 2, 2, concat("half", job.rank % 2));
  const auto back = job.sub_group(job.size - 1 - job.rank, job.size, "back");
  expect(job.size == 4, "four ranks");
  for (int i = 0; i < 50; ++i) {
    Tensors a = {at::full({100 + i * 37}, job.rank + i)};
    all->allreduce(a)->wait();
    expect(a[0].equal(at::full({100 + i * 37}, 6 + 4 * i)), "all");
    Tensors b = {at::full({9000}, job.rank)};
    half->allreduce(b)->wait();
    expect(b[0].equal(at::full({9000}, job.rank % 2 == 0 ? 2 : 4)), "half");
    Tensors c = {at::full({3}, job.rank)};
    c10d::BroadcastOptions options;
    options.rootRank = i % 4;
    back->broadcast(c, options)->wait();
    expect(c[0].equal(at::full({3}, 3 - i % 4)), "back");
  }
  std::exception_ptr error;
  std::thread other([&] {
    try {
      for (int i = 0; i < 100; ++i) {
        Tensors tensors = {at::full({i * 11}, job.rank)};
        back->allreduce(tensors)->wait();
        expect(tensors[0].equal(at::full({i * 11}, 6)), "second thread");
      }
    } catch (...) {
      error = std::current_exception();
    }
  });
  for (int i = 0; i < 100; ++i) {
    Tensors tensors = {at::full({5000 - i}, job.rank + 1)};
    all->allreduce(tensors)->wait();
    expect(tensors[0].equal(at::full({5000 - i}, 10)), "first thread");
  }
  other.join();
  if (error) std::rethrow_exception(error);
  for (int i = 0; i < 200; ++i) job.mpi(concat("short ", i))->barrier()->wait();
}

// train BACKEND [VICTIM]: several buckets, half of the steps without synchronization, uneven batches over the
// ranks.
void train(const Words& words) {
  AcceleratorOptions options;
  options.backend = words.at(0);
  // Whose VICTIM sleeps before step 6.
  const int64_t victim = words.size() > 1 ? number(words, 1) : -1;
  options.timeout = victim < 0 ? std::chrono::milliseconds(60000) : std::chrono::milliseconds(1500);
  options.ddp.bucket_cap_mb = 0.01;
  options.gradient_accumulation_steps = 2;
  Accelerator accelerator(options);
  torch::nn::Sequential net(torch::nn::Linear(40, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                            torch::nn::Tanh(), torch::nn::Linear(64, 1));
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(torch::sin(torch::arange(parameter.numel()).to(torch::kFloat)).view(parameter.sizes()) /
                      8);
    }
  }
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const int rank = accelerator.process_index();
  double total = 0;
  for (int step = 0; step < 12; ++step) {
    if (step == 6 && rank == victim) std::this_thread::sleep_for(std::chrono::seconds(60));
    auto window = accelerator.accumulate(model);
    const auto x = torch::cos(torch::arange(80).to(torch::kFloat) + 100 * rank + step);
    optimizer.zero_grad();
    auto loss = model->forward(x.view({2, 40})).pow(2).mean();
    accelerator.backward(loss);
    optimizer.step();
    total += accelerator.reduce(loss.detach()).item<double>();
  }
  const auto ids = accelerator.gather(torch::full({2}, rank, torch::kLong));
  std::ostringstream text;
  text << std::setprecision(17) << "rank " << rank << " weights";
  for (const auto& parameter : net->parameters()) {
    const auto flat = parameter.detach().view({-1}).to(torch::kDouble);
    text << ' ' << flat.sum().item<double>() << ' ' << flat[flat.numel() / 2].item<double>();
  }
  text << " loss " << total << " ids " << ids.sum().item<int64_t>();
  say(text.str());
}

// several: Accelerators one after another, then two at once.
void several(const Words&) {
  AcceleratorOptions options;
  options.backend = "mpi";
  for (int i = 0; i < 3; ++i) {
    Accelerator accelerator(options);
    accelerator.wait_for_everyone();
  }
  Accelerator first(options);
  Accelerator second(options);
  const auto sum = first.reduce(second.reduce(torch::ones({1})));
  expect(sum.item<float>() == static_cast<float>(first.num_processes() * first.num_processes()), "sum");
}

// own_init LEVEL: the program starts and ends MPI itself.
void own_init(const Words& words) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, static_cast<int>(number(words, 0)), &provided);
  std::exception_ptr error;
  try {
    AcceleratorOptions options;
    options.backend = "mpi";
    options.timeout = std::chrono::seconds(20);
    Accelerator accelerator(options);
    expect(accelerator.reduce(torch::ones({2})).sum().item<float>() ==
               static_cast<float>(2 * accelerator.num_processes()),
           "sum");
  } catch (...) {
    error = std::current_exception();
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  expect(finalized == 0, "MPI was ended");
  MPI_Finalize();
  if (error) std::rethrow_exception(error);
}

// loop TIMEOUT_MS NUMEL STEPS VICTIM DEED: sums again and again. Before step 5, VICTIM does its deed.
void loop(const Words& words) {
  const Topology topology = detect_topology(EnvVars::from_process());
  Logger logger(topology.rank, LogLevel::kWarning);
  const auto group = make_communicator(
      topology, {.backend = "mpi", .timeout = std::chrono::milliseconds(number(words, 0))}, logger);
  at::Tensor data = at::zeros({number(words, 1)});
  const int size = group->size();
  const std::string deed = words.at(4);
  for (int64_t step = 0; step < number(words, 2); ++step) {
    if (step == 5) {
      say(concat("rank ", topology.rank, " runs pid ", ::getpid()));
      if (topology.rank == number(words, 3)) {
        if (deed == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
        if (deed == "kill") ::raise(SIGKILL);
        if (deed == "stop") ::raise(SIGSTOP);
        if (deed == "throw") throw std::runtime_error("boom 42");
        if (deed == "leave") return;
      }
    }
    data.fill_(static_cast<double>(topology.rank + step));
    group->all_reduce(data);
    if (!data.eq(size * (size - 1) / 2 + size * step).all().item<bool>())
      throw std::runtime_error("wrong sum");
  }
  say(concat("rank ", topology.rank, " done over ", group->backend_name()));
}

// idle TIMEOUT_MS RANK SECONDS: all ranks end after a barrier; RANK takes its time.
void idle(const Words& words) {
  const Topology topology = detect_topology(EnvVars::from_process());
  Logger logger(topology.rank, LogLevel::kWarning);
  const auto group = make_communicator(
      topology, {.backend = "mpi", .timeout = std::chrono::milliseconds(number(words, 0))}, logger);
  group->barrier();
  if (topology.rank == number(words, 1)) std::this_thread::sleep_for(std::chrono::seconds(number(words, 2)));
}

// explicit: the place is that of RANK and WORLD_SIZE, whatever mpirun says.
void explicit_place(const Words&) {
  const auto variable = [](const char* name) {
    return static_cast<int>(EnvVars::from_process().get_int(name).value());
  };
  Logger logger(variable("RANK"), LogLevel::kWarning);
  const Topology topology{.launcher = "torchrun",
                          .rank = variable("RANK"),
                          .world_size = variable("WORLD_SIZE"),
                          .local_rank = variable("RANK"),
                          .local_world_size = variable("WORLD_SIZE"),
                          .job_id = EnvVars::from_process().get("TORCHELASTIC_RUN_ID").value()};
  make_communicator(topology, {.backend = "mpi", .timeout = std::chrono::seconds(20)}, logger);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// ratio: medians of mpi's time over Gloo's for all-reduces, in turn in the same processes.
void ratio(const Words&) {
  const Job job;
  const auto mpi = make_communicator(job.topology, {.backend = "mpi"}, const_cast<Job&>(job).logger);
  for (const int64_t kib : {64, 1024, 25600}) {
    at::Tensor data = at::ones({kib * 256});
    const int repeats = kib > 2000 ? 1 : 10;
    const auto time = [&](Communicator& group) {
      group.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < repeats; ++i) group.all_reduce(data);
      group.barrier();
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() /
             repeats;
    };
    std::vector<double> ours;
    std::vector<double> theirs;
    for (int round = 0; round < 21; ++round) {
      data.fill_(1);
      theirs.push_back(time(*job.gloo));
      data.fill_(1);
      ours.push_back(time(*mpi));
    }
    if (job.rank == 0) {
      std::ostringstream line;
      line << kib << " KiB: mpi " << median(ours) << " ms, gloo " << median(theirs) << " ms, ratio "
           << median(ours) / median(theirs);
      say(line.str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Words words(argv + 1, argv + argc);
  const std::map<std::string, std::function<void(const Words&)>> actions = {
      {"fuzz", fuzz_all},     {"special", special},         {"overlap", overlap},
      {"messages", messages}, {"groups", groups},           {"train", train},
      {"several", several},   {"own_init", own_init},       {"loop", loop},
      {"ratio", ratio},       {"explicit", explicit_place}, {"wrong_messages", wrong_messages},
      {"idle", idle}};
  return accelerate::testing::run_rank([&] {
    if (words.empty() || !actions.contains(words[0]))
      throw std::runtime_error("usage: mpi_torch WHAT [ARGUMENTS]");
    actions.at(words[0])(Words(words.begin() + 1, words.end()));
    say(concat("took part: ", words[0]));
  });
}
