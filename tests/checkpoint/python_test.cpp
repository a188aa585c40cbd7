// Weights and checkpoints go to Python and come from there.
#include <filesystem>
#include <fstream>

#include "accelerate/checkpoint/weights.h"
#include "support/python_files.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::TemporaryFolder;

namespace {

// What `script` finds wrong, in Python, makes this throw.
void run_python(const std::string& script) {
  const test::PythonFiles files("ACCELERATE_TEST_PYTHON", script);
}

}  // namespace

TEST_CASE("shards and an index that Python wrote load here") {
  const test::PythonFiles files("ACCELERATE_TEST_PYTHON", R"(
import json, numpy
from safetensors.numpy import save_file
a = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
b = numpy.arange(4, dtype=numpy.float16)
c = numpy.array([7, 8, 9], dtype=numpy.int64)
save_file({"0.weight": a, "0.bias": b}, "model-00001-of-00002.safetensors", metadata={"format": "pt"})
save_file({"steps": c}, "model-00002-of-00002.safetensors", metadata={"format": "pt"})
with open("model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {"total_size": 80}, "weight_map": {
        "0.weight": "model-00001-of-00002.safetensors", "0.bias": "model-00001-of-00002.safetensors",
        "steps": "model-00002-of-00002.safetensors"}}, file)
)");
  TensorDict targets = {{"0.weight", torch::zeros({4, 3})},
                        {"0.bias", torch::zeros({4})},
                        {"steps", torch::zeros({3}, torch::kLong)}};
  const auto report = load_weights(targets, WeightSource::open(files / "."));
  CHECK(report.complete());
  CHECK(report.converted == std::vector<std::string>{"0.bias: Half to Float"});
  CHECK(targets.at("0.weight").equal(torch::arange(12).to(torch::kFloat).reshape({4, 3})));
  CHECK(targets.at("0.bias").equal(torch::arange(4).to(torch::kFloat)));
  CHECK(targets.at("steps").equal(torch::arange(7, 10)));
  // By the index's own path too, and a shard that is missing is named.
  CHECK(WeightSource::open(files / "model.safetensors.index.json").names().size() == 3);
  std::filesystem::remove(files / "model-00002-of-00002.safetensors");
  CHECK_THAT(test::error_of<CheckpointError>([&] { WeightSource::open(files / "."); }),
             Catch::Contains("model-00002-of-00002.safetensors"));
}

TEST_CASE("shards, and a checkpoint that two ranks wrote together, load in Python") {
  const TemporaryFolder folder;
  std::vector<double> sums;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Linear(16, 2));
    for (auto& parameter : net->parameters())
      parameter.detach().copy_(torch::arange(parameter.numel()).reshape_as(parameter));
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.125));
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model->forward(torch::ones({4, 8})).sum());
    optimizer.step();
    accelerator.save_model(model, folder / "model", {.max_shard_size = "600"});
    accelerator.save_state(folder / "state", {.sharded = true});
  });
  run_python(concat(R"(
import glob, json, numpy, os
from safetensors.numpy import load_file
from safetensors import safe_open
def read(folder, stem):
    with open(os.path.join(folder, stem + ".safetensors.index.json")) as file:
        index = json.load(file)
    tensors, size = {}, 0
    for name in set(index["weight_map"].values()):
        path = os.path.join(folder, name)
        with safe_open(path, "numpy") as file:
            assert file.metadata()["format"] == "pt"
        for key, value in load_file(path).items():
            assert index["weight_map"][key] == name and key not in tensors
            tensors[key] = value
            size += value.nbytes
    assert set(tensors) == set(index["weight_map"]) and size == index["metadata"]["total_size"]
    return tensors
root = ")",
                    folder.path(), R"("
model = read(os.path.join(root, "model"), "model")
assert len(glob.glob(os.path.join(root, "model", "*.safetensors"))) > 1
names = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
         "2.weight", "2.bias"}
assert set(model) == names, set(model)
state = read(os.path.join(root, "state"), "model")
for name in names:
    numpy.testing.assert_array_equal(model[name], state[name])
moments = read(os.path.join(root, "state"), "optimizer")
with open(os.path.join(root, "state", "optimizer.json")) as file:
    optimizer = json.load(file)
group, = optimizer["param_groups"]
assert optimizer["type"] == "AdamW" and group["options"]["lr"] == 0.125 and len(group["params"]) == 6
for name in group["params"]:
    assert optimizer["state"][name]["step"] == 1
    assert moments[name + ".exp_avg"].shape == model[name].shape
with open(os.path.join(root, "state", "manifest.json")) as file:
    manifest = json.load(file)
assert manifest["world_size"] == 2, manifest
for rank in range(2):
    assert load_file(os.path.join(root, "state", f"random_states_{rank}.safetensors"))["cpu"].dtype == numpy.uint8
)"));
}
