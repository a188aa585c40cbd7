// Files of Python's torch.save() in tests/parity/torch_files were written by torch_files_gen.py beside it.
#include "accelerate/checkpoint/torch_file.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/state_dict.h"
#include "support/temporary_folder.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::TemporaryFolder;

namespace {

std::string file(const std::string& name) {
  return concat(ACCELERATE_TEST_SOURCE_DIR, "/tests/parity/torch_files/", name);
}

void check_equal(const TensorDict& got, const TensorDict& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, tensor] : want) {
    INFO(name);
    REQUIRE(got.contains(name));
    CHECK(got.at(name).scalar_type() == tensor.scalar_type());
    REQUIRE(got.at(name).sizes() == tensor.sizes());
    // Not all dtypes have equal(): compare bytes.
    CHECK(got.at(name).contiguous().view({-1}).view(at::kByte).equal(
        tensor.contiguous().view({-1}).view(at::kByte)));
    CHECK_FALSE(got.at(name).requires_grad());
  }
}

std::string error(const std::string& path, const std::string& key = "") {
  return error_of<CheckpointError>([&] { load_torch_file(path, key); });
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("weights of Python's torch.save equal what safetensors has of them") {
  const TensorDict weights = load_safetensors(file("state_dict.safetensors"));
  for (const char* name : {"state_dict.pt", "protocol3.pt", "protocol4.pt", "protocol5.pt", "deflated.pt"}) {
    INFO(name);
    check_equal(load_torch_file(file(name)), weights);
  }
  const TensorDict kinds = load_safetensors(file("kinds.safetensors"));
  CHECK(kinds.size() == 25);
  check_equal(load_torch_file(file("kinds.pt")), kinds);
  check_equal(load_torch_file(file("unaligned.pt")), kinds);
  CHECK(load_torch_file(file("nothing.pt")).empty());
}

TEST_CASE("tensors that share memory in the file share it, and the file stays as it is") {
  TensorDict tied = load_torch_file(file("tied.pt"));
  check_equal(tied, load_safetensors(file("tied.safetensors")));
  CHECK(tied.at("encoder").data_ptr() == tied.at("decoder").data_ptr());
  tied.at("encoder")[1].fill_(-1);
  CHECK(tied.at("row").equal(torch::full({3}, -1.0F)));
  check_equal(load_torch_file(file("tied.pt")), load_safetensors(file("tied.safetensors")));
}

TEST_CASE("a dict within a checkpoint is chosen by its key") {
  const TensorDict weights = load_safetensors(file("checkpoint.safetensors"));
  check_equal(load_torch_file(file("checkpoint.pt"), "model"), weights);
  check_equal(load_torch_file(file("checkpoint.pt"), "ema.deep"), weights);
  CHECK(load_torch_file(file("checkpoint.pt"), "a.b").at("w").equal(torch::ones({1})));  // a key with a dot
  CHECK(load_torch_file(file("checkpoint.pt"), "optimizer.state.0").size() == 3);
  const std::string text = error(file("checkpoint.pt"));
  CHECK_THAT(text, ContainsSubstring("'model' (a dict of 8 tensors), 'optimizer' (a dict of 2 entries), "
                                     "'epoch' (an int), 'loss' (a float)"));
  CHECK_THAT(text, ContainsSubstring("key = \"model\"."));
  CHECK_THAT(error(file("checkpoint.pt"), "ema"), ContainsSubstring("key = \"ema.deep\"."));
  CHECK_THAT(error(file("checkpoint.pt"), "modell"),
             ContainsSubstring("has no entry 'modell': expected one of its keys, got 'model'"));
  CHECK_THAT(error(file("checkpoint.pt"), "epoch"),
             ContainsSubstring("'epoch': expected a dict of tensors, got an int"));
  CHECK_THAT(error(file("checkpoint.pt"), "args"), ContainsSubstring("got an object of argparse.Namespace"));
  CHECK_THAT(error(file("state_dict.pt"), "head.weight"), ContainsSubstring("got a tensor"));
}

TEST_CASE("what is no dict of tensors is named, with the way to convert it") {
  CHECK_THAT(error(file("tensor.pt")), ContainsSubstring("got a tensor. Save it with a name"));
  CHECK_THAT(error(file("list.pt")), ContainsSubstring("got a list of 2. Save its tensors with names"));
  CHECK_THAT(error(file("whole.pt")), ContainsSubstring("got an object of __main__.Net"));
  CHECK_THAT(error(file("whole.pt")), ContainsSubstring("for k, v in x.state_dict().items()"));
  CHECK_THAT(error(file("legacy.pt")), ContainsSubstring("got one in the format before torch 1.6"));
  CHECK_THAT(error(file("legacy.pt")), ContainsSubstring("python3 -c \"import torch, safetensors"));
  CHECK_THAT(error(file("unknown_class.pt")), ContainsSubstring("'o' (an object of __main__.Options)"));
  CHECK_THAT(error(file("sparse.pt")), ContainsSubstring("torch._utils._rebuild_sparse_tensor"));
  CHECK_THAT(error(file("quantized.pt")), ContainsSubstring("torch._utils._rebuild_qtensor"));
  CHECK_THAT(error(file("meta.pt")), ContainsSubstring("torch._utils._rebuild_meta_tensor_no_storage"));
  CHECK_THAT(error(file("conjugate.pt")), ContainsSubstring("with its conj bit set"));
  CHECK_THAT(error(file("number_keys.pt")), ContainsSubstring("'3' (a tensor)"));
  CHECK_THAT(error(file("script.pt")), ContainsSubstring("got TorchScript (__torch__.torch.nn.modules"));
  CHECK_THAT(error(file("program.pt2")), ContainsSubstring("got a program of torch.export"));
  CHECK_THAT(error(file("other.zip")), ContainsSubstring("other.zip"));
  CHECK_THAT(error(file("big_endian.pt")), ContainsSubstring("expected little-endian numbers, got big"));
  CHECK_THAT(error(file("tied.safetensors")), ContainsSubstring("got a safetensors file"));
  CHECK_THAT(error(file("none.pt")), ContainsSubstring("No such file"));
  CHECK_THAT(error(file("")), ContainsSubstring("expected a file, got a folder"));
  const TemporaryFolder folder;
  for (const char* text : {"", "PK", "\x80\x04N.", "hello, this is no checkpoint"}) {
    std::ofstream(folder.path() + "/x", std::ios::binary) << text;
    INFO(text);
    CHECK_THAT(error(folder.path() + "/x"), ContainsSubstring(folder.path() + "/x"));
  }
}

TEST_CASE("archives of C++ give the module's own names") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/net.pt";
  const auto untracked = torch::nn::BatchNormOptions(3).track_running_stats(false);
  const torch::nn::ModuleList inner(torch::nn::LSTM(4, 2), torch::nn::BatchNorm1d(untracked));
  const torch::nn::ModuleList net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::BatchNorm1d(4),
                                  inner);
  torch::save(net, path);
  check_equal(load_torch_file(path), state_dict(*net));
  torch::save(torch::arange(4), path);
  check_equal(load_torch_file(path), {{"0", torch::arange(4)}});
  torch::save(std::vector<torch::Tensor>{torch::ones({2}), torch::zeros({1})}, path);
  check_equal(load_torch_file(path), {{"0", torch::ones({2})}, {"1", torch::zeros({1})}});
  c10::Dict<std::string, torch::Tensor> dict;
  dict.insert("w", torch::ones({2}));
  const std::vector<char> pickled = torch::pickle_save(dict);
  std::ofstream(path, std::ios::binary).write(pickled.data(), static_cast<std::streamsize>(pickled.size()));
  check_equal(load_torch_file(path), {{"w", torch::ones({2})}});

  torch::optim::Adam optimizer(net->parameters());
  torch::save(optimizer, path);
  CHECK_THAT(error(path), ContainsSubstring("expected what torch::save(module, path) writes"));
  torch::serialize::OutputArchive archive;
  archive.write("note", c10::IValue("x"));
  archive.save_to(path);
  CHECK_THAT(error(path), ContainsSubstring("'note' is no tensor"));
}

TEST_CASE("damaged files of torch.save are errors, never crashes") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.pt";
  const std::string whole = read_file(file("kinds.pt"));
  REQUIRE(whole.size() > 7000);
  for (size_t length = 2; length < whole.size(); length += 13) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, length);
    INFO(length);
    CHECK_THAT(error(path), ContainsSubstring(path + " is no complete file of torch.save"));
  }
  // Bytes that are wrong, most of them where the pickle and the zip's directory lie: whatever is still read
  // lies within the file.
  std::mt19937 random(7);
  const size_t pickle_end = whole.find("archive/.format_version") == std::string::npos
                                ? 2500
                                : whole.find("archive/.format_version");
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string changed = whole;
    for (int k = 0; k <= i % 3; ++k) {
      const bool early = random() % 4 != 0;
      const size_t at = early ? random() % pickle_end : whole.size() - 1 - random() % 2500;
      changed[at] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary) << changed;
    try {
      for (const auto& [name, tensor] : load_torch_file(path)) {
        if (tensor.numel() < 1000) (void)tensor.contiguous().view({-1}).view(at::kByte).sum().item<int64_t>();
      }
    } catch (const CheckpointError&) {
      ++errors;
    }
  }
  CHECK(errors > 300);
}
