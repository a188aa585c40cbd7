// A rank for tests of the profiler: trains a little and profiles two steps of it. Usage: profile_torch FOLDER
#include <torch/torch.h>

#include <filesystem>

#include "accelerate/accelerate.h"
#include "rank_program.h"

using namespace accelerate;

int main(int argc, char** argv) {
  return testing::run_rank([&] {
    if (argc != 2) throw std::runtime_error("usage: profile_torch FOLDER");
    const std::string folder = argv[1];
    Accelerator accelerator;
    const auto data = SharedMemoryDataset::create(accelerator, [] {
      return std::pair(torch::randn({192, 16}), torch::randint(4, {192}));
    });
    torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
    auto [model, optimizer, loader] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                                                          DataLoader(data, {.batch_size = 8}));
    auto profiler = accelerator.profile(
        {.schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 1},
         .output_trace_dir = folder});
    for (auto& batch : loader) {
      {
        const ProfileScope range("train");
        optimizer.zero_grad();
        const auto loss = torch::nn::functional::cross_entropy(model->forward(batch.data), batch.target);
        accelerator.backward(loss);
        optimizer.step();
        accelerator.gather(loss);
      }
      profiler.step();
    }
    profiler.finish();
    if (!accelerator.is_main_process()) return;
    int64_t traces = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      traces += entry.path().extension() == ".json" && entry.file_size() > 0;
    }
    accelerator.print(profiler.table(), traces, " traces are complete");
  });
}
