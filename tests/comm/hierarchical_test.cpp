// Shared memory within machines and Gloo between them: threads as ranks, on machines that are made up.
#include "support/backend_fuzz.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test::fuzz;

namespace {

struct Machines {
  int machines;
  int ranks;  // on each
  int size() const { return machines * ranks; }
};

Topology topology(const Machines& job, int rank, const std::string& job_id) {
  const int machine = rank / job.ranks;
  return {.launcher = "threads",
          .rank = rank,
          .world_size = job.size(),
          .local_rank = rank % job.ranks,
          .local_world_size = job.ranks,
          .node_rank = machine,
          .num_nodes = job.machines,
          .job_id = concat(job_id, "-", machine)};
}

}  // namespace

TEST_CASE("shared memory and Gloo together give what Gloo gives: every operation and dtype, odd sizes") {
  for (const Machines job : {Machines{2, 2}, Machines{2, 3}, Machines{3, 2}, Machines{2, 4}}) {
    constexpr int kCases = 25;
    test::run_threads(job.size(), [&](int rank, const Store& store, const std::string& job_id) {
      const Topology place = topology(job, rank, job_id);
      const auto make_one = [&](const char* name) {
        const accelerate::detail::BackendRequest request{
            .store = c10::make_intrusive<c10d::PrefixStore>(name, store.c10d_store()),
            .rank = rank,
            .size = job.size(),
            .timeout = std::chrono::seconds(60),
            .master_addr = "127.0.0.1",
            .node_rank = place.node_rank,
            .num_nodes = place.num_nodes,
            .local_rank = place.local_rank,
            .local_size = place.local_world_size,
            .job_id = place.job_id};
        return accelerate::detail::find_backend(name)->make(request);
      };
      Pair pair{make_one("hierarchical"), make_one("gloo"), rank, job.size(), /*partly_gloo=*/true};
      std::mt19937_64 random(static_cast<uint64_t>(job.size()));
      for (int i = 0; i < kCases; ++i) {
        const Case c = random_case(random, job.size());
        fuzz_movements(pair, c);
        fuzz_reductions(pair, random, c);
      }
      pair.gloo->barrier()->wait();
    });
    std::printf("%d machines with %d ranks each took part, %d cases\n", job.machines, job.ranks, kCases);
  }
}

TEST_CASE("auto takes shared memory and Gloo together for ranks of several machines, and trains alike") {
  std::mutex mutex;
  std::map<std::string, std::vector<double>> losses;
  std::map<std::string, int> ranks;
  const Machines job{2, 2};
  for (const std::string wanted : {"auto", "gloo"}) {
    test::run_threads(job.size(), [&](int rank, const Store& store, const std::string& job_id) {
      AcceleratorOptions options;
      options.environment = EnvVars();
      options.topology = topology(job, rank, job_id);
      options.logger = std::make_shared<Logger>(rank, LogLevel::kError);
      options.communicator =
          make_communicator(store.share(), *options.topology,
                            {.backend = wanted, .timeout = std::chrono::seconds(60)}, *options.logger);
      Accelerator accelerator(options);
      torch::nn::Sequential net(torch::nn::Linear(40, 64), torch::nn::Tanh(), torch::nn::Linear(64, 3));
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) {
          parameter.copy_(
              torch::sin(torch::arange(parameter.numel()).to(torch::kFloat)).view(parameter.sizes()) / 8);
        }
      }
      torch::optim::SGD sgd(net->parameters(), 0.05);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 10; ++step) {
        const auto x = torch::cos(torch::arange(80).to(torch::kFloat) + 100 * rank + step).view({2, 40});
        optimizer.zero_grad();
        const auto loss = model->forward(x).pow(2).mean();
        accelerator.backward(loss);
        optimizer.step();
        const double total = accelerator.reduce(loss.detach()).template item<double>();
        const std::lock_guard lock(mutex);
        if (rank == 0) losses[wanted].push_back(total);
      }
      const std::lock_guard lock(mutex);
      ++ranks[accelerator.communicator().backend_name()];
    });
  }
  CHECK(ranks == std::map<std::string, int>{{"gloo", 4}, {"hierarchical", 4}});
  REQUIRE(losses["auto"].size() == 10);
  for (size_t i = 0; i < 10; ++i) CHECK(losses["auto"][i] == Approx(losses["gloo"][i]).epsilon(1e-5));
  CHECK(losses["gloo"][9] < losses["gloo"][0] / 2);
}

TEST_CASE("ranks that are not numbered machine by machine talk over Gloo, or say why they can't") {
  std::mutex mutex;
  std::vector<std::string> names;
  std::vector<std::string> errors;
  test::run_threads(3, [&](int rank, const Store& store, const std::string& job_id) {
    // Two ranks on the first machine, one on the second.
    const Topology place{.rank = rank,
                         .world_size = 3,
                         .local_rank = rank % 2,
                         .local_world_size = rank < 2 ? 2 : 1,
                         .node_rank = rank / 2,
                         .num_nodes = 2,
                         .job_id = concat(job_id, "-", rank / 2)};
    Logger logger(rank, LogLevel::kError);
    const CommunicatorOptions options{.timeout = std::chrono::seconds(30)};
    const auto group = make_communicator(store.share(), place, options, logger);
    at::Tensor one = at::ones({2});
    group->all_reduce(one);
    std::string error;
    try {
      auto strict = options;
      strict.backend = "hierarchical";
      Store other(c10::make_intrusive<c10d::PrefixStore>("strict", store.c10d_store()));
      make_communicator(std::move(other), place, strict, logger);
    } catch (const Error& caught) {
      error = caught.what();
    }
    const std::lock_guard lock(mutex);
    if (one[0].item<float>() == 3) names.push_back(group->backend_name());
    errors.push_back(error);
  });
  CHECK(names == std::vector<std::string>(3, "gloo"));
  REQUIRE(errors.size() == 3);
  for (const std::string& error : errors) {
    CHECK_THAT(error, ContainsSubstring("equally many on each") && ContainsSubstring("'gloo'"));
  }
}
