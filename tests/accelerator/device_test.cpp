// Placement on a device that is not the CPU: the test device of tests/support.
#include <filesystem>
#include <limits>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/optim/clip.h"
#include "support/checks.h"
#include "support/test_device.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;

TEST_CASE("models and batches move to the rank's device, train there, and are saved from there") {
  test::register_test_device();
  AcceleratorOptions options;
  options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", "testdevice:2"}});
  options.topology = Topology{.job_id = "device"};
  Accelerator accelerator(options);
  REQUIRE(accelerator.device() == at::Device("testdevice:2"));

  torch::manual_seed(5);
  torch::nn::Linear reference(4, 2);
  torch::nn::Linear net(4, 2);
  {
    const torch::NoGradGuard no_grad;
    net->weight.copy_(reference->weight);
    net->bias.copy_(reference->bias);
  }
  torch::optim::SGD reference_sgd(reference->parameters(), 0.5);
  torch::optim::SGD sgd(net->parameters(), 0.5);  // built before the model moves, as everybody does
  const auto data = SharedMemoryDataset::create(accelerator, [] {
    return std::pair(torch::arange(24).to(torch::kFloat).reshape({6, 4}) / 24,
                     torch::arange(12).to(torch::kFloat).reshape({6, 2}));
  });
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, DataLoader(data, {.batch_size = 2}));
  CHECK(net->weight.device() == accelerator.device());
  int batches = 0;
  for (auto& batch : loader) {
    REQUIRE(batch.data.device() == accelerator.device());
    REQUIRE(batch.target.device() == accelerator.device());
    optimizer.zero_grad();
    accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();

    reference_sgd.zero_grad();
    torch::mse_loss(reference->forward(batch.data.cpu()), batch.target.cpu()).backward();
    torch::nn::utils::clip_grad_norm_(reference->parameters(), 1.0);
    reference_sgd.step();
    ++batches;
  }
  CHECK(batches == 3);
  CHECK(net->weight.device() == accelerator.device());
  CHECK(net->weight.cpu().allclose(reference->weight, 1e-5, 1e-6));
  CHECK(net->bias.cpu().allclose(reference->bias, 1e-5, 1e-6));

  const std::string folder =
      (std::filesystem::temp_directory_path() / concat("accelerate-device-", ::getpid())).string();
  const TensorDict saved = load_safetensors(accelerator.save_model(model, folder));
  CHECK(saved.at("weight").equal(net->weight.cpu()));
  std::filesystem::remove_all(folder);
}

TEST_CASE("state that an optimizer has before prepare() follows the model to its device") {
  test::register_test_device();
  const auto run = [](const std::string& device, auto make) {
    AcceleratorOptions options;
    options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", device}});
    options.topology = Topology{.job_id = "device"};
    Accelerator accelerator(options);
    torch::manual_seed(5);
    torch::nn::Linear net(4, 2);
    auto given = make(net->parameters());
    net->forward(torch::ones({1, 4})).sum().backward();
    given.step();  // on the CPU
    auto [model, optimizer] = accelerator.prepare(net, given);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({1, 4}, accelerator.device())).pow(2).sum());
      optimizer.step();
    }
    return net->weight.detach().cpu();
  };
  const auto adagrad = [](const auto& parameters) { return torch::optim::Adagrad(parameters, 0.1); };
  const auto adam = [](const auto& parameters) { return torch::optim::AdamW(parameters, 0.1); };
  CHECK(run("testdevice:1", adagrad).allclose(run("cpu", adagrad), 1e-5, 1e-6));
  CHECK(run("testdevice:1", adam).allclose(run("cpu", adam), 1e-5, 1e-6));
}

TEST_CASE("gradients on several devices are clipped together") {
  test::register_test_device();
  const auto clipped = [](const std::vector<at::Device>& devices) {
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < devices.size(); ++i) {
      parameters.push_back(torch::zeros({3}, devices[i]).requires_grad_());
      parameters.back().mutable_grad() = torch::full({3}, 1.0 + static_cast<double>(i)).to(devices[i]);
    }
    const at::Tensor norm = clip_grad_norm_(parameters, 1.0);
    CHECK(norm.device() == devices[0]);
    std::vector<at::Tensor> out = {norm.cpu().reshape(1)};
    for (const at::Tensor& parameter : parameters) out.push_back(parameter.grad().cpu());
    return torch::cat(out);
  };
  const at::Device cpu = at::kCPU;
  const at::Device first("testdevice:1");
  const at::Device third("testdevice:3");
  CHECK(clipped({first, cpu, third}).allclose(clipped({cpu, cpu, cpu})));
  CHECK(clipped({cpu, third, first}).allclose(clipped({cpu, cpu, cpu})));
}

TEST_CASE("each local rank gets a device of its own, and placement can be left to the user") {
  test::register_test_device();
  AcceleratorOptions options;
  options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", "testdevice"}});
  options.topology = Topology{.local_rank = 3, .local_world_size = 1, .job_id = "device"};
  options.device_placement = false;
  Accelerator accelerator(options);
  CHECK(accelerator.device() == at::Device("testdevice:3"));
  const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::ones({2, 1}); });
  torch::nn::Linear net(1, 1);
  auto [model, loader] = accelerator.prepare(net, DataLoader(data, {.batch_size = 1}));
  CHECK(net->weight.is_cpu());
  for (auto& batch : loader) CHECK(batch.data.is_cpu());
  options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", "gpu0"}});
  CHECK_THROWS_WITH(
      Accelerator(options),
      ContainsSubstring("expected a device such as cpu, cuda or cuda:0 that is there, got 'gpu0'"));
}

TEST_CASE(
    "the next batch is copied on a stream of its own, which the loop's stream waits for; an error keeps its "
    "turn") {
  test::register_test_device();
  AcceleratorOptions options;
  options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", "testdevice:1"}});
  options.topology = Topology{.job_id = "device"};
  struct Items {
    std::shared_ptr<int64_t> fetched = std::make_shared<int64_t>(0);
    at::Tensor get(size_t i) {
      if (i == 4) throw std::runtime_error("boom 42");
      ++*fetched;
      return torch::tensor(static_cast<int64_t>(i));
    }
    int64_t size() const { return 6; }
  };
  for (const bool beside : {true, false}) {
    options.dataloader.non_blocking = beside;
    Accelerator accelerator(options);
    const Items items;
    auto loader = accelerator.prepare(DataLoader(ItemDataset(items), {.batch_size = 1}));
    test::stream_use() = {};
    std::vector<int64_t> seen;
    std::vector<int64_t> fetched;
    std::string error;
    try {
      for (auto& batch : loader) {
        REQUIRE(batch.device() == accelerator.device());
        seen.push_back(batch.cpu().template item<int64_t>());
        fetched.push_back(*items.fetched);
      }
    } catch (const DataError& caught) {
      error = caught.what();
    }
    CHECK(seen == std::vector<int64_t>{0, 1, 2, 3});  // the error of sample 4 is not thrown before its turn
    CHECK_THAT(error, ContainsSubstring("boom 42"));
    // While the loop works on batch i, batch i + 1 is on its way.
    CHECK(fetched == (beside ? std::vector<int64_t>{2, 3, 4, 4} : std::vector<int64_t>{1, 2, 3, 4}));
    const test::StreamUse& use = test::stream_use();
    CHECK(use.copies_beside == (beside ? 4 : 0));
    CHECK(use.events == (beside ? 4 : 0));
    CHECK(use.waits == (beside ? 4 : 0));
    CHECK(use.notes == (beside ? 4 : 0));
  }
}

TEST_CASE("data parallel training on devices: each rank has its own, gradients are reduced in buckets") {
  test::register_test_device();
  // The joined batch on one rank of the CPU.
  const auto x = torch::sin(torch::arange(48).to(torch::kFloat)).reshape({12, 4});
  const auto start = torch::cos(torch::arange(8).to(torch::kFloat)).reshape({2, 4});
  torch::nn::Linear reference(4, 2);
  {
    const torch::NoGradGuard no_grad;
    reference->weight.copy_(start);
    reference->bias.zero_();
  }
  torch::optim::SGD reference_sgd(reference->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    reference_sgd.zero_grad();
    reference->forward(x).pow(2).mean().backward();
    reference_sgd.step();
  }
  for (const double bucket_mb : {25.0, 1e-5}) {  // one bucket, one a parameter
    test::run_threads(2, [&](int rank, const Store& store, const std::string& job_id) {
      AcceleratorOptions options = test::thread_rank_options(store, rank, 2, job_id);
      options.environment = test::variables({{"ACCELERATE_TORCH_DEVICE", "testdevice"}});
      options.ddp.bucket_cap_mb = bucket_mb;
      options.communicator = make_communicator(
          Store(c10::make_intrusive<c10d::PrefixStore>("device", store.c10d_store())), rank, 2, true,
          {.backend = test::thread_backend(),
           .timeout = std::chrono::seconds(60),
           .device = at::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(rank))},
          *options.logger);
      Accelerator accelerator(options);
      test::require(
          accelerator.device() == at::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(rank)),
          "a device for each rank");
      torch::nn::Linear net(4, 2);
      {
        const torch::NoGradGuard no_grad;
        net->weight.copy_(rank == 0 ? start : torch::zeros({2, 4}));  // prepare gives all rank 0's
        net->bias.zero_();
      }
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        const auto mine = x.narrow(0, rank * 6, 6).to(accelerator.device());
        accelerator.backward(model->forward(mine).pow(2).mean());
        optimizer.step();
      }
      test::require(net->weight.device() == accelerator.device(), "weights stay on the device");
      test::require(net->weight.cpu().allclose(reference->weight, 1e-5, 1e-6), "weight");
      test::require(net->bias.cpu().allclose(reference->bias, 1e-5, 1e-6), "bias");
      const auto all = accelerator.gather(torch::full({2}, rank).to(accelerator.device()));
      test::require(all.device() == accelerator.device() && all.cpu().equal(torch::tensor({0, 0, 1, 1})),
                    "gather");
    });
  }
}

TEST_CASE("gradients on a device are unscaled there, and an overflow leaves the step out") {
  test::register_test_device();
  const at::Device device("testdevice:1");
  const auto weight = torch::zeros({3}, device).requires_grad_();
  torch::optim::SGD sgd({weight}, 1.0);
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto step = [&](float gradient) {
    const at::Tensor loss = scaler.scale((weight * gradient).sum());
    CHECK(loss.device() == device);
    loss.backward();
    const bool ran = scaler.step(sgd, [&] { sgd.step(); });
    weight.mutable_grad().reset();
    return ran;
  };
  CHECK(step(1.0F));
  CHECK(weight.detach().cpu().equal(torch::full({3}, -1.0F)));
  CHECK(scaler.get_scale() == 8);
  CHECK_FALSE(step(std::numeric_limits<float>::infinity()));
  CHECK(weight.detach().cpu().equal(torch::full({3}, -1.0F)));
  CHECK(scaler.get_scale() == 4);
  CHECK(step(1.0F));
  CHECK(step(1.0F));
  CHECK(scaler.get_scale() == 8);
  CHECK(weight.detach().cpu().equal(torch::full({3}, -3.0F)));
}
