// A training that saves after every step and goes on from the newest checkpoint: resume_torch DIR EPOCHS
// [async] [sharded] [keep N] [slow MILLISECONDS]. The main process prints "final <numbers of the weights>".
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "accelerate/accelerate.h"
#include "rank_program.h"

using namespace accelerate;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("in", in);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(drop(norm(in(x)).relu())); }
  torch::nn::Linear in{8, 16};
  torch::nn::BatchNorm1d norm{16};
  torch::nn::Dropout drop{0.25};
  torch::nn::Linear out{16, 1};
};
TORCH_MODULE(Net);

struct Options {
  std::string folder;
  int64_t epochs = 0;
  SaveStateOptions save;
  int64_t keep = 2;
  int64_t slow_ms = 0;
};

Options parse(const std::vector<std::string>& words) {
  Options out{.folder = words.at(0), .epochs = std::stoll(words.at(1)), .save = {}};
  for (size_t i = 2; i < words.size(); ++i) {
    if (words[i] == "async") {
      out.save.async = true;
    } else if (words[i] == "sharded") {
      out.save.sharded = true;
    } else if (words[i] == "keep") {
      out.keep = std::stoll(words.at(++i));
    } else if (words[i] == "slow") {
      out.slow_ms = std::stoll(words.at(++i));
    } else {
      throw std::runtime_error("unknown word " + words[i]);
    }
  }
  return out;
}

void train(const Options& options) {
  Accelerator accelerator(
      {.timeout = std::chrono::seconds(60),
       .project_config = {
           .project_dir = options.folder, .automatic_checkpoint_naming = true, .total_limit = options.keep}});
  set_seed(3, /*device_specific=*/true, accelerator.process_index());
  Net net;
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
  LambdaLR cosine = get_scheduler("cosine", adam, {.num_warmup_steps = 10, .num_training_steps = 2000});
  const auto data = SharedMemoryDataset::create(accelerator, [] {
    return TensorDict{{"x", torch::arange(64 * 8).to(torch::kFloat).reshape({64, 8}).sin()}};
  });
  auto [model, optimizer, scheduler, loader] =
      accelerator.prepare(net, adam, cosine, DataLoader(data, {.batch_size = 4, .shuffle = true}));
  if (const auto loaded = accelerator.resume()) {
    accelerator.print("start: resumed ", loaded->path, " after ", loaded->optimizer_steps, " steps");
  } else {
    accelerator.print("start: begins");
  }
  while (loader.epoch() < options.epochs) {
    for (auto& batch : loader) {
      const auto scope = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(model->forward(batch["x"]).square().mean());
      optimizer.step();
      scheduler.step();
      accelerator.save_state("", options.save);
      accelerator.save_if_preempted();
      if (options.slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(options.slow_ms));
    }
  }
  accelerator.end_training();
  std::ostringstream text;
  text.precision(17);
  for (const auto& parameter : net->parameters())
    text << ' ' << parameter.sum().item<double>() << ' ' << parameter.square().sum().item<double>();
  accelerator.print("final", text.str());
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_rank([&] { train(parse({argv + 1, argv + argc})); });
}
