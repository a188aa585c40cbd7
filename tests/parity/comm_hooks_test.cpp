// Training under each communication hook equals PyTorch's DistributedDataParallel under it.
// comm_hooks.safetensors was written by comm_hooks_gen.py beside it.
#include "accelerate/strategy/power_sgd_seeds.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

namespace {

constexpr int64_t kBatch = 8;

const TensorDict& golden() {
  static const TensorDict data =
      load_safetensors(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/comm_hooks.safetensors");
  return data;
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                            torch::nn::Tanh(), torch::nn::Linear(32, 32), torch::nn::Tanh(),
                            torch::nn::Linear(32, 4));
  const torch::NoGradGuard no_grad;
  for (auto& entry : net->named_parameters()) entry.value().copy_(golden().at("init." + entry.key()));
  return net;
}

constexpr int64_t kEarlySteps = 10;

struct Differences {
  double early_loss = 0;  // in the first steps
  double loss = 0;
  double weight = 0;
};

// The largest of any rank's loss and of any rank's final weights.
Differences largest_differences(const std::string& name, const DdpOptions& ddp) {
  const torch::Tensor want = golden().at(name + ".loss");
  const int64_t samples = golden().at("data.x").size(0);
  Differences out;
  std::mutex mutex;
  int64_t steps_seen = 0;
  AcceleratorOptions options;
  options.ddp = ddp;
  test::run_ranks(
      2,
      [&](Accelerator& accelerator) {
        auto net = make_net();
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const int rank = accelerator.process_index();
        for (int64_t step = 0; step < want.size(1); ++step) {
          const auto rows = (torch::arange(kBatch) + (step * 2 + rank) * kBatch).remainder(samples);
          const auto x = golden().at("data.x").index_select(0, rows);
          const auto y = golden().at("data.y").index_select(0, rows);
          optimizer.zero_grad();
          const auto loss = torch::nn::functional::cross_entropy(model->forward(x), y);
          accelerator.backward(loss);
          optimizer.step();
          const std::lock_guard lock(mutex);
          const double difference = std::abs(loss.item<double>() - want[rank][step].item<double>());
          out.loss = std::max(out.loss, difference);
          if (step < kEarlySteps) out.early_loss = std::max(out.early_loss, difference);
          ++steps_seen;
        }
        const std::lock_guard lock(mutex);
        for (const auto& entry : net->named_parameters()) {
          const auto expected = golden().at(name + ".final." + entry.key());
          out.weight = std::max(out.weight, (entry.value() - expected).abs().max().item<double>());
        }
      },
      options);
  CHECK(steps_seen == 2 * want.size(1));
  std::printf("%s on %s: largest difference of a loss %.1e (%.1e in the first steps), of a weight %.1e\n",
              name.c_str(), test::thread_backend().c_str(), out.loss, out.early_loss, out.weight);
  return out;
}

void check_equal(const std::string& name, const DdpOptions& ddp, double early_bound, double bound) {
  const Differences found = largest_differences(name, ddp);
  INFO(name);
  CHECK(found.early_loss < early_bound);
  CHECK(found.loss < bound);
  CHECK(found.weight < bound);
}

void check_equal(const std::string& name, const DdpOptions& ddp, double bound) {
  check_equal(name, ddp, bound, bound);
}

DdpOptions power_sgd(const PowerSgdOptions& options) {
  return {.comm_hook = "power_sgd", .comm_state_option = options};
}

}  // namespace

TEST_CASE("PowerSGD's seeds are numpy's") {
  for (const uint32_t seed : {0U, 7U, 4294967295U}) {
    const torch::Tensor want = golden().at(concat("randint.", seed));
    accelerate::detail::PowerSgdSeeds seeds(seed);
    for (int64_t i = 0; i < want.numel(); ++i) {
      CHECK(seeds.next() == static_cast<uint64_t>(want[i].item<int64_t>()));
    }
  }
}

// With a rank lower than that of the gradients, the directions that orthogonalizing finds hang on small
// norms, and the error that is fed back keeps what a step left out: a difference in the last bit of one
// product grows from step to step, tenfold in some five. The first ten steps are held tightly, all thirty
// more loosely.
TEST_CASE("training without a hook and with PowerSGD equals Python's DDP, within 1e-5 in ten steps") {
  const std::vector<std::pair<std::string, DdpOptions>> cases = {
      {"no", {}},
      {"rank1", power_sgd({.matrix_approximation_rank = 1, .start_powerSGD_iter = 2})},
      {"rank2", power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 5, .random_seed = 7})},
      {"rank3",
       power_sgd({.matrix_approximation_rank = 3, .start_powerSGD_iter = 2, .min_compression_rate = 1.5})},
      {"epsilon",
       power_sgd(
           {.matrix_approximation_rank = 2, .start_powerSGD_iter = 2, .orthogonalization_epsilon = 1e-3})},
      {"cold", power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2, .warm_start = false})},
      {"no_feedback",
       power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2, .use_error_feedback = false})},
      {"from_start", power_sgd({.matrix_approximation_rank = 2,
                                .start_powerSGD_iter = 0,
                                .use_error_feedback = false,
                                .warm_start = false})},
      {"same_shape", power_sgd({.matrix_approximation_rank = 2,
                                .start_powerSGD_iter = 2,
                                .batch_tensors_with_same_shape = true})},
      {"rate6",
       power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2, .min_compression_rate = 6})},
  };
  for (const auto& [name, ddp] : cases) check_equal(name, ddp, 1e-5, name == "no" ? 1e-5 : 1e-4);
}

TEST_CASE("PowerSGD with several buckets, bucket views and a static graph equals Python's DDP within 1e-5") {
  DdpOptions ddp = power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2});
  ddp.bucket_cap_mb = 0.004;
  check_equal("buckets", ddp, 1e-5);
  ddp.gradient_as_bucket_view = true;
  check_equal("buckets", ddp, 1e-5);
  ddp.static_graph = true;
  check_equal("buckets", ddp, 1e-5);
}

TEST_CASE("PowerSGD over whole buckets equals Python's within 1e-5") {
  DdpOptions ddp = {.comm_hook = "batched_power_sgd",
                    .comm_state_option = {.matrix_approximation_rank = 1, .start_powerSGD_iter = 2}};
  check_equal("batched", ddp, 1e-5);
  ddp.bucket_cap_mb = 0.004;
  ddp.comm_state_option = {.matrix_approximation_rank = 2, .start_powerSGD_iter = 3, .warm_start = false};
  check_equal("batched_buckets", ddp, 1e-5);
}

// float16 has 11 bits and bfloat16 8, so a gradient that differs in its last float32 bit may now and then be
// rounded to a neighbour 2^-11 or 2^-8 of itself away. Gradients here are below 0.1 and most gradients round
// alike, which leaves a few such differences, times the learning rate and 1 / (1 - momentum) = 10, in a
// weight.
TEST_CASE("gradients in half precision equal Python's DDP up to a rounding") {
  for (const bool views : {false, true}) {
    check_equal("fp16", {.gradient_as_bucket_view = views, .comm_hook = "fp16"}, 1e-4);
    check_equal("bf16", {.gradient_as_bucket_view = views, .comm_hook = "bf16"}, 1e-3);
    check_equal("fp16_buckets",
                {.bucket_cap_mb = 0.004, .gradient_as_bucket_view = views, .comm_hook = "fp16"}, 1e-4);
  }
}

// As above: bit for bit at first; then one rounding to another neighbour, 2^-11 or 2^-8 away, grows as for
// PowerSGD in float32, from a larger beginning.
TEST_CASE("PowerSGD in half precision equals Python's DDP up to roundings") {
  DdpOptions ddp = power_sgd({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2});
  ddp.comm_wrapper = "fp16";
  check_equal("rank2_fp16", ddp, 1e-5, 5e-2);
  ddp.comm_wrapper = "bf16";
  check_equal("rank2_bf16", ddp, 1e-5, 5e-2);
}
