// Training equals PyTorch's DistributedDataParallel step by step. ddp_parity.safetensors was written by
// ddp_parity_gen.py beside it.
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;

namespace {

const TensorDict& golden() {
  static const TensorDict data =
      load_safetensors(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/ddp_parity.safetensors");
  return data;
}

torch::nn::Sequential make_net() {
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                            torch::nn::Tanh(), torch::nn::Linear(32, 4));
  const torch::NoGradGuard no_grad;
  for (auto& entry : net->named_parameters()) entry.value().copy_(golden().at("init." + entry.key()));
  return net;
}

// Returns the largest differences of any rank's loss and of rank 0's final weights.
std::pair<double, double> largest_differences(int world, int64_t accumulation,
                                              const std::string& precision = {}) {
  const std::string name = concat("w", world, "a", accumulation, precision);
  const torch::Tensor want = golden().at(name + ".loss");
  std::mutex mutex;
  double loss_difference = 0;
  double weight_difference = 0;
  int64_t steps_seen = 0;
  AcceleratorOptions options;
  options.gradient_accumulation_steps = accumulation;
  if (!precision.empty()) options.mixed_precision = precision;
  test::run_ranks(
      world,
      [&](Accelerator& accelerator) {
        const auto data = SharedMemoryDataset::create(
            accelerator, [] { return std::pair(golden().at("data.x"), golden().at("data.y")); });
        auto net = make_net();
        torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(1e-2));
        auto [model, optimizer, loader] =
            accelerator.prepare(net, adam, DataLoader(data, {.batch_size = 8, .shuffle = true, .seed = 42}));
        int64_t step = 0;
        while (step < want.size(1)) {
          for (auto& batch : loader) {
            const auto micro_batch = accelerator.accumulate(model);
            const auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
            accelerator.backward(loss);
            optimizer.step();
            optimizer.zero_grad();
            const double expected = want[accelerator.process_index()][step].item<double>();
            {
              const std::lock_guard lock(mutex);
              loss_difference = std::max(loss_difference, std::abs(loss.template item<double>() - expected));
              ++steps_seen;
            }
            if (++step == want.size(1)) break;
          }
        }
        const std::lock_guard lock(mutex);
        for (const auto& entry : net->named_parameters()) {
          const auto expected = golden().at(name + ".final." + entry.key());
          weight_difference =
              std::max(weight_difference, (entry.value() - expected).abs().max().template item<double>());
        }
      },
      options);
  CHECK(steps_seen == 100 * world);
  return {loss_difference, weight_difference};
}

}  // namespace

TEST_CASE("100 steps on 1 and 2 ranks, accumulation 1 and 4, equal Python's DDP within 1e-5") {
  for (const int world : {1, 2}) {
    for (const int64_t accumulation : {1, 4}) {
      const auto [loss, weights] = largest_differences(world, accumulation);
      std::printf("%d ranks, accumulation %ld: largest difference of a loss %.1e, of a weight %.1e\n", world,
                  static_cast<long>(accumulation), loss, weights);
      CHECK(loss < 1e-5);
      CHECK(weights < 1e-5);
    }
  }
}

TEST_CASE("100 steps in bf16 on 1 and 2 ranks follow Python's DDP under autocast") {
  for (const int world : {1, 2}) {
    const auto [loss, weights] = largest_differences(world, 1, "bf16");
    std::printf("%d ranks, bf16: largest difference of a loss %.1e, of a weight %.1e\n", world, loss,
                weights);
    // bfloat16 has 8 bits: a sum in another order may round to a neighbour 2^-8 away, and training goes on
    // from it.
    CHECK(loss < 2e-2);
    CHECK(weights < 2e-2);
  }
}
