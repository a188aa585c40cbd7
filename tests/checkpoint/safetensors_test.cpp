#include "accelerate/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::TemporaryFolder;

namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("tensors of every dtype come back equal") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/a.safetensors";
  TensorDict tensors;
  for (const auto dtype : {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kLong,
                           torch::kInt, torch::kShort, torch::kChar, torch::kByte, torch::kBool}) {
    tensors[std::string(c10::toString(dtype))] = torch::arange(6).reshape({2, 3}).to(dtype).t();
  }
  tensors["scalar"] = torch::tensor(2.5);
  tensors["empty"] = torch::empty({0, 3});
  CHECK(save_safetensors(system_files(), path, tensors).empty());
  const TensorDict back = load_safetensors(path);
  REQUIRE(back.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(back.at(name).scalar_type() == tensor.scalar_type());
    CHECK(back.at(name).sizes() == tensor.sizes());
    CHECK(back.at(name).equal(tensor));
  }
  back.at("Float").zero_();  // this process's copy only
  CHECK(load_safetensors(path).at("Float").equal(tensors.at("Float")));
}

TEST_CASE("memory that two names share is written once") {
  const TemporaryFolder folder;
  const torch::Tensor weight = torch::ones({4, 4});
  const auto shared = save_safetensors(system_files(), folder.path() + "/b.safetensors",
                                       {{"decoder", weight}, {"encoder", weight}, {"row", weight[0]}});
  CHECK(shared == SharedNames{{"encoder", "decoder"}});
  CHECK(load_safetensors(folder.path() + "/b.safetensors").size() == 2);
}

TEST_CASE("damaged files are named, never read past their end") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/c.safetensors";
  save_safetensors(system_files(), path, {{"w", torch::ones({8})}});
  const std::string whole = read_file(path);
  for (size_t length = 0; length < whole.size(); ++length) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, length);
    INFO(length);
    CHECK_THAT(test::error_of<CheckpointError>([&] { load_safetensors(path); }),
               ContainsSubstring(path + " is no complete safetensors file"));
  }
  std::string hostile = whole;
  hostile.replace(hostile.find("[8]"), 3, "[9]");
  std::ofstream(path, std::ios::binary) << hostile;
  CHECK_THAT(test::error_of<CheckpointError>([&] { load_safetensors(path); }),
             ContainsSubstring("another number of bytes than its shape"));
  CHECK_THAT(test::error_of<CheckpointError>([&] { load_safetensors(folder.path() + "/none"); }),
             ContainsSubstring("No such file"));
  CHECK_THAT(test::error_of<CheckpointError>([&] { load_safetensors(folder.path()); }),
             ContainsSubstring("no regular file"));
  CHECK_THAT(test::error_of<CheckpointError>([&] {
               save_safetensors(system_files(), path, {{"c", torch::zeros({1}, torch::kComplexFloat)}});
             }),
             ContainsSubstring("tensor 'c'"));
}

TEST_CASE("save_model writes the module's own names on the main process, and all ranks learn of a failure") {
  const TemporaryFolder folder;
  const std::string target = folder.path() + "/deep/er";
  std::ofstream(folder.path() + "/file") << "not a folder";
  test::run_ranks(2, [&](Accelerator& accelerator) {
    torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
    auto model = accelerator.prepare(net);
    const std::string path = accelerator.save_model(model, target);
    const TensorDict back = load_safetensors(path);  // complete on every rank once save_model is back
    if (back.size() != 7 || !back.at("0.weight").equal(net->parameters()[0]))
      throw std::runtime_error("content");
    const std::string text =
        test::error_of<CheckpointError>([&] { accelerator.save_model(model, folder.path() + "/file"); });
    if (text == "no error") throw std::runtime_error("a file in place of the folder");
  });
  const TensorDict back = load_safetensors(target + "/model.safetensors");
  CHECK(back.contains("1.running_mean"));
  CHECK(back.contains("1.num_batches_tracked"));
  CHECK(std::filesystem::exists(target + "/model.safetensors"));
  for (const auto& entry : std::filesystem::directory_iterator(target)) {
    CHECK(entry.path().filename() == "model.safetensors");  // no temporary file is left
  }
}

TEST_CASE("Python's safetensors reads what we write") {
  const char* python = std::getenv("ACCELERATE_TEST_PYTHON");
  REQUIRE(python != nullptr);  // the build system passes the interpreter of the set-up's environment
  const TemporaryFolder folder;
  save_safetensors(
      system_files(), folder.path() + "/d.safetensors",
      {{"a.weight", torch::arange(6).to(torch::kFloat).reshape({2, 3})}, {"b", torch::tensor({7, 8})}});
  const std::string script = folder.path() + "/read.py";
  std::ofstream(script)
      << "import sys\n"
         "from safetensors import safe_open\n"
         "with safe_open(sys.argv[1], 'np') as f:\n"
         "    assert f.metadata() == {'format': 'pt'}, f.metadata()\n"
         "    assert sorted(f.keys()) == ['a.weight', 'b']\n"
         "    assert f.get_tensor('a.weight').tolist() == [[0, 1, 2], [3, 4, 5]]\n"
         "    assert f.get_tensor('b').tolist() == [7, 8] and f.get_tensor('b').dtype == 'int64'\n";
  CHECK(
      std::system(concat(shell_quote(python), " ", shell_quote(script), " ", folder.path(), "/d.safetensors")
                      .c_str()) == 0);
}
