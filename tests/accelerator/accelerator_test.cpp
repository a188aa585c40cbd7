#include "accelerate/accelerator.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;

TEST_CASE("every rank knows who it is") {
  std::atomic<int> main = 0;
  std::atomic<int> last = 0;
  std::atomic<int> sum = 0;
  test::run_ranks(3, [&](Accelerator& accelerator) {
    main += accelerator.is_main_process();
    last += accelerator.is_last_process();
    sum += accelerator.process_index();
    require(accelerator.num_processes() == 3 && accelerator.device().is_cpu(), "size and device");
    require(accelerator.strategy().capabilities().reduces_gradients, "capabilities");
  });
  CHECK(main == 1);
  CHECK(last == 1);
  CHECK(sum == 3);
}

TEST_CASE("gather, reduce and broadcast take any structure and leave their input alone") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const auto rank = static_cast<double>(accelerator.process_index());
    const std::map<std::string, std::vector<torch::Tensor>> value = {
        {"a", {torch::full({2}, rank), torch::full({1, 2}, rank + 10)}}, {"b", {torch::tensor(rank)}}};
    const auto gathered = accelerator.gather(value);
    require(gathered.at("a")[0].equal(torch::tensor({0., 0., 1., 1., 2., 2.}, torch::kFloat)), "gather");
    require(gathered.at("b")[0].equal(torch::tensor({0., 1., 2.}, torch::kFloat)), "gather of a scalar");
    require(accelerator.reduce(value).at("a")[1].equal(torch::full({1, 2}, 33.0)), "sum");
    require(accelerator.reduce(value, ReduceOp::kMean).at("b")[0].item<double>() == 1.0, "mean");
    require(accelerator.broadcast(value, 2).at("a")[0].equal(torch::full({2}, 2.0)), "broadcast");
    require(value.at("b")[0].item<double>() == rank, "input unchanged");
    accelerator.wait_for_everyone();
  });
}

TEST_CASE("handles come back in the order of the arguments, whatever that is") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    torch::nn::Linear net(1, 1);
    torch::optim::Adam adam(net->parameters());
    torch::optim::StepLR step_lr(adam, 1);
    torch::optim::ReduceLROnPlateauScheduler plateau(adam);
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::ones({4, 1}); });
    auto [scheduler, second, optimizer, loader, model] =
        accelerator.prepare(step_lr, plateau, adam, DataLoader(data, {.batch_size = 2}), net);
    static_assert(std::is_same_v<decltype(scheduler), PreparedScheduler<torch::optim::StepLR>>);
    static_assert(std::is_same_v<decltype(optimizer), PreparedOptimizer<torch::optim::Adam>>);
    static_assert(std::is_same_v<decltype(model), PreparedModel<torch::nn::Linear>>);
    static_assert(std::is_same_v<decltype(loader), PreparedDataLoader<SharedMemoryDataset>>);
    require(model.unwrap().ptr() == net.ptr(), "unwrap");
    require(&optimizer.unwrap() == &adam, "a variable stays where it is");
    second->step(0.5F);
    scheduler->step();
  });
}

TEST_CASE("objects may be given by value, by shared_ptr and by unique_ptr") {
  test::run_ranks(1, [](Accelerator& accelerator) {
    torch::nn::Linear net(1, 1);
    auto [model, by_value] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
    auto shared = accelerator.prepare(std::make_shared<torch::optim::SGD>(net->parameters(), 0.25));
    auto unique = accelerator.prepare(std::make_unique<torch::optim::AdamW>(net->parameters()));
    auto pointer_model = accelerator.prepare(net.ptr());
    require(pointer_model.core() == model.core(), "the same module is the same model");
    accelerator.backward(pointer_model->forward(torch::ones({1, 1})).sum());
    const float before = net->weight.item<float>();
    by_value->step();
    require(net->weight.item<float>() == before - 0.5F, "steps");
    require(shared.param_groups()[0].options().get_lr() == 0.25, "shared");
    unique.zero_grad();
    require(!net->weight.grad().defined(), "unique");
  });
}

TEST_CASE("a program started plainly says how to start the processes that its file asks for") {
  std::vector<std::string> lines;
  AcceleratorOptions options;
  options.config_file = std::string(ACCELERATE_TEST_SOURCE_DIR) + "/configs/multi_cpu_2.yaml";
  options.environment = EnvVars();
  options.logger =
      std::make_shared<Logger>(0, LogLevel::kInfo, [&](std::string_view line) { lines.emplace_back(line); });
  const Accelerator accelerator(options);
  CHECK(accelerator.num_processes() == 1);
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], ContainsSubstring("asks for 2") && ContainsSubstring("accel launch"));
}

TEST_CASE("an Accelerator takes its configuration file as an argument") {
  const std::string file = concat("/tmp/accelerate-config-", ::getpid(), ".yaml");
  std::ofstream(file) << "distributed_type: NO\nuse_cpu: true\ngradient_accumulation_steps: 6\n";
  AcceleratorOptions options;
  options.environment = EnvVars();
  CHECK(Accelerator(file, options).gradient_accumulation_steps() == 6);
  CHECK(Accelerator(file.c_str(), options).config().file == file);
  CHECK(Accelerator(std::filesystem::path(file), options).gradient_accumulation_steps() == 6);
  options.gradient_accumulation_steps = 2;
  CHECK(Accelerator(file, options).gradient_accumulation_steps() == 2);
  std::filesystem::remove(file);
  CHECK_THROWS_WITH(Accelerator(file, options), ContainsSubstring(file));
  CHECK_THROWS_AS(Accelerator("/nonexistent/config.yaml"), ConfigError);
  // Options alone still mean options.
  CHECK(Accelerator({.gradient_accumulation_steps = 3, .environment = EnvVars()})
            .gradient_accumulation_steps() == 3);
}

TEST_CASE("code wins over environment and file") {
  AcceleratorOptions options;
  options.environment = test::variables({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3"}});
  CHECK(Accelerator(options).gradient_accumulation_steps() == 3);
  options.gradient_accumulation_steps = 5;
  CHECK(Accelerator(options).gradient_accumulation_steps() == 5);
  options.environment = test::variables({{"ACCELERATE_LOG_LEVEL", "loud"}});
  CHECK_THROWS_WITH(Accelerator(options), ContainsSubstring("got 'loud'"));
}

TEST_CASE("an error on one rank ends the collective of the others with its name") {
  std::string message;
  CHECK_THROWS_WITH(test::run_ranks(2,
                                    [&](Accelerator& accelerator) {
                                      if (accelerator.process_index() == 1)
                                        throw std::runtime_error("boom 42");
                                      try {
                                        accelerator.wait_for_everyone();
                                      } catch (const CommError& error) {
                                        message = error.what();
                                        throw;
                                      }
                                    }),
                    "boom 42");
  CHECK_THAT(message,
             ContainsSubstring("barrier #1") && ContainsSubstring("rank 1 left after 0 collectives"));
}
