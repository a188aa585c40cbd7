// `accel estimate-memory`: sizes from headers, and the formulas.
#include <sys/stat.h>

#include "accelerate/core/error.h"
#include "launch_test_support.h"
#include "launcher/memory_estimate.h"
#include "test_support.h"

using namespace accelerate::testing;
using namespace accelerate::cli;
using accelerate::concat;

namespace {

// A safetensors file: the length of the header in 8 bytes, the header, and `data_bytes` of data.
std::string safetensors(const std::string& header, size_t data_bytes = 0) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return out + header + std::string(data_bytes, '\0');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                  uint64_t end) {
  return concat('"', name, R"(":{"dtype":")", dtype, R"(","shape":[)", shape, R"(],"data_offsets":[)", begin,
                ",", end, "]}");
}

// Two float tensors of 6 and 4 elements and a counter.
std::string small_header() {
  return concat(R"({"__metadata__":{"format":"pt"},)", entry("fc.weight", "F32", "2,3", 0, 24), ",",
                entry("fc.bias", "BF16", "4", 24, 32), ",", entry("steps", "I64", "", 32, 40), "}");
}

// What is said of a file that can't be used.
std::string refusal(const std::string& path, const std::string& dtype = {}) {
  try {
    read_model_size(path, dtype);
  } catch (const accelerate::CheckpointError& error) {
    return error.what();
  }
  return "accepted";
}

MemoryEstimate find(const std::vector<MemoryEstimate>& all, const std::string& strategy,
                    const std::string& precision) {
  for (const MemoryEstimate& estimate : all) {
    if (estimate.strategy == strategy && estimate.precision == precision) return estimate;
  }
  throw std::runtime_error("no such estimate");
}

}  // namespace

TEST_CASE("the documented example of HF: 11.53 MB of float32 train with Adam in 46.13 MB", "[launcher]") {
  const ModelSize model{.name = "x", .parameters = 3'023'000};
  const MemoryEstimate estimate = find(estimate_memory(model, "adamw", 1), "ddp", "fp32");
  CHECK(memory_text(estimate.weights_bytes) == "11.53 MB");
  CHECK(memory_text(estimate.total_bytes()) == "46.13 MB");
}

// ZeRO, figure 1: 7.5B parameters, 64 ranks, mixed precision with Adam: 120, 31.4, 16.6 and 1.9 (10^9 bytes).
TEST_CASE("the figures of the ZeRO paper", "[launcher]") {
  const auto all = estimate_memory({.name = "x", .parameters = 7'500'000'000}, "adamw", 64);
  CHECK(find(all, "ddp", "bf16/fp16").total_bytes() == 120'000'000'000);
  CHECK(find(all, "zero1", "bf16/fp16").total_bytes() == 31'406'250'000);
  CHECK(find(all, "zero2", "bf16/fp16").total_bytes() == 16'640'625'000);
  CHECK(find(all, "zero3", "bf16/fp16").total_bytes() == 1'875'000'000);
  CHECK(find(all, "ddp", "fp32").supported);
}

TEST_CASE("shards are rounded up, buffers are on every rank", "[launcher]") {
  const ModelSize model{.name = "x", .parameters = 10, .buffer_bytes = 8};
  for (const auto& [optimizer, state] : {std::pair{"adamw", 8}, {"sgd-momentum", 4}, {"sgd", 0}}) {
    const auto all = estimate_memory(model, optimizer, 3);
    const auto bytes = static_cast<uint64_t>(state);
    CHECK(find(all, "ddp", "fp32").total_bytes() == 10 * (8 + bytes) + 8);
    CHECK(find(all, "zero3", "fp32").weights_bytes == 4 * 4 + 8);
    CHECK(find(all, "zero3", "fp32").gradients_bytes == 4 * 4);
    CHECK(find(all, "zero1", "bf16/fp16").optimizer_bytes == 4 * (bytes + 4));
    CHECK(find(all, "zero1", "bf16/fp16").weights_bytes == 10 * 2 + 8);
  }
  CHECK_THROWS_AS(estimate_memory(model, "lion", 1), accelerate::ConfigError);
}

TEST_CASE("numbers of parameters, and sizes, in words", "[launcher]") {
  CHECK(parse_parameter_count("7B") == 7'000'000'000);
  CHECK(parse_parameter_count("1.5b") == 1'500'000'000);
  CHECK(parse_parameter_count("350M") == 350'000'000);
  CHECK(parse_parameter_count("12k") == 12'000);
  CHECK(parse_parameter_count("124000") == 124'000);
  CHECK(parse_parameter_count("1e9") == 1'000'000'000);
  for (const char* bad : {"", "B", "x", "-7B", "0", "7BB", "1e16", "nan", "9999T"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_parameter_count(bad), accelerate::ConfigError);
  }
  CHECK(memory_text(512) == "512 bytes");
  CHECK(memory_text(1024) == "1.00 KB");
  CHECK(memory_text(7'000'000'000ULL * 16) == "104.31 GB");
}

TEST_CASE("a file, its header alone, an index and a folder give the same size", "[launcher]") {
  const TempDir dir;
  write_file(dir / "whole.safetensors", safetensors(small_header(), 40));
  write_file(dir / "header.safetensors", safetensors(small_header()));
  write_file(dir / "header.json", small_header());
  std::filesystem::create_directories(dir / "one");
  write_file(dir / "one/model.safetensors", safetensors(small_header(), 40));
  std::filesystem::create_directories(dir / "sharded");
  write_file(dir / "sharded/a.safetensors",
             safetensors(concat("{", entry("fc.weight", "F32", "2,3", 0, 24), "}")));
  write_file(dir / "sharded/b.safetensors", safetensors(concat("{", entry("fc.bias", "BF16", "4", 0, 8), ",",
                                                               entry("steps", "I64", "", 8, 16), "}")));
  write_file(
      dir / "sharded/model.safetensors.index.json",
      R"({"metadata":{"total_size":40},"weight_map":{"fc.weight":"a.safetensors","fc.bias":"b.safetensors","steps":"b.safetensors"}})");
  for (const char* name : {"whole.safetensors", "header.safetensors", "header.json", "one", "sharded",
                           "sharded/model.safetensors.index.json"}) {
    INFO(name);
    const ModelSize size = read_model_size(dir / name, "");
    CHECK(size.parameters == 10);
    CHECK(size.buffer_bytes == 8);
    CHECK(size.stored_bytes == 40);
    CHECK(size.tensors == 3);
    CHECK(size.largest_tensor == "fc.weight");
    CHECK(size.largest_parameters == 6);
  }
}

TEST_CASE("an index without its files", "[launcher]") {
  const TempDir dir;
  const std::string path = dir / "m.safetensors.index.json";
  write_file(path,
             R"({"metadata":{"total_size":28},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  CHECK_THAT(refusal(path), ContainsSubstring("--stored_dtype"));
  CHECK(read_model_size(path, "bf16").parameters == 14);
  CHECK(read_model_size(path, "F32").parameters == 7);
  write_file(path,
             R"({"metadata":{"total_size":28,"total_parameters":13},"weight_map":{"a":"1.safetensors"}})");
  CHECK(read_model_size(path, "").parameters == 13);
  write_file(dir / "1.safetensors", safetensors(small_header()));
  write_file(path, R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  CHECK_THAT(refusal(path), ContainsSubstring("2.safetensors"));
  write_file(path, R"({"weight_map":{"a":"../1.safetensors"}})");
  CHECK_THAT(refusal(path), ContainsSubstring("beside the index"));
  write_file(path, R"({"metadata":{}})");
  CHECK_THAT(refusal(path), ContainsSubstring("weight_map"));
}

TEST_CASE("damaged and missing files are named", "[launcher]") {
  const TempDir dir;
  const std::string path = dir / "m.safetensors";
  const auto check = [&](const std::string& bytes, const std::string& part) {
    write_file(path, bytes);
    const std::string said = refusal(path);
    CHECK_THAT(said, ContainsSubstring(path) && ContainsSubstring(part));
  };
  CHECK_THAT(refusal(dir / "none"), ContainsSubstring("--parameters"));
  check("", "only 0 bytes");
  check("1234567", "only 7 bytes");
  check(std::string(8, '\xff'), "no such file begins like this");
  check(safetensors(small_header()).substr(0, 60), "cut off");
  check(safetensors("{]"), "the header can't be read");
  check(safetensors("[1]"), "no object");
  check(safetensors("{}"), "no floating-point tensor");
  check(safetensors(R"({"a":1})"), "lacks dtype");
  check(safetensors(concat("{", entry("a", "F32", "-2", 0, 8), "}")), "a size that is not possible");
  check(safetensors(concat("{", entry("a", "F32", "3", 0, 8), "}")), "another number of bytes");
  check(safetensors(concat("{", entry("a", "F32", "3", 9, 8), "}")), "ends before it begins");
  check(safetensors(concat("{", entry("a", "F32", "4294967296,4294967296,4", 0, 8), "}")),
        "a shape that is not possible");
  check(safetensors(concat(R"({"a":)", std::string(100000, '['))), "nested");
  std::filesystem::create_directories(dir / "empty");
  CHECK_THAT(refusal(dir / "empty"), ContainsSubstring("no .safetensors file"));
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(refusal(dir / "pipe"), ContainsSubstring("no regular file"));
}

TEST_CASE("estimate-memory as typed", "[launcher]") {
  AccelRun table({"estimate-memory", "--parameters", "7B", "--num-processes", "8"},
                 {.environment = {{"LC_ALL", "C"}}});
  CHECK(table.finish() == 0);
  CHECK_THAT(table.out(), ContainsSubstring("| ddp") && ContainsSubstring("104.31 GB |") &&
                              ContainsSubstring("zero3") && ContainsSubstring("13.04 GB |") &&
                              ContainsSubstring("Activations"));
  AccelRun box({"estimate-memory", "--parameters", "7B"}, {.environment = {{"LC_ALL", "C.UTF-8"}}});
  CHECK(box.finish() == 0);
  CHECK_THAT(box.out(), ContainsSubstring("┌─") && ContainsSubstring("│ ddp"));
  const TempDir dir;
  write_file(dir / "m.safetensors", safetensors(small_header()));
  AccelRun json({"estimate-memory", dir / "m.safetensors", "--json", "--optimizer", "sgd"});
  CHECK(json.finish() == 0);
  CHECK_THAT(json.out(), ContainsSubstring("\"parameters\": 10") &&
                             ContainsSubstring("\"name\": \"fc.weight\"") &&
                             ContainsSubstring("\"total_bytes\": 88"));
  AccelRun none({"estimate-memory"});
  CHECK(none.finish() == 2);
  AccelRun both({"estimate-memory", "x", "--parameters", "1"});
  CHECK(both.finish() == 2);
  AccelRun missing({"estimate-memory", "bert-base-cased"});
  CHECK(missing.finish() == 6);
  CHECK_THAT(missing.err(), ContainsSubstring("Nothing is downloaded"));
  AccelRun optimizer({"estimate-memory", "--parameters", "1", "--optimizer", "lion"});
  CHECK(optimizer.finish() == 2);
}
