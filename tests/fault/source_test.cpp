// `accel launch train.cpp` with a program that trains.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;

namespace {

constexpr const char* kTenLines = R"(#include <accelerate/accelerator.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
int main() {
  accelerate::Accelerator accelerator;
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.backward(model->forward(torch::ones({2, 4})).pow(2).mean());
  optimizer.step();
  accelerator.print("trained on ", accelerator.num_processes());
})";

}  // namespace

TEST_CASE("a program that trains is compiled and launched, and the second time launched at once") {
  const TempDir dir;
  write_file(dir / "train.cpp", kTenLines);
  for (const bool first : {true, false}) {
    AccelRun run({"launch", "--cpu", "--num_processes", "2", "--no_prefix", dir / "train.cpp"},
                 {.environment = {{"XDG_CACHE_HOME", dir / "cache"}, {"CXXFLAGS", "-O0"}}});
    CHECK(run.finish(std::chrono::seconds(300)) == 0);
    INFO(run.all());
    CHECK(run.out() == "trained on 2\n");
    CHECK(AccelRun::count_in(run.err(), "compiled in") == (first ? 1 : 0));
  }
}
