// What HF's libraries wrote (tests/parity/merge_weights_gen.py) joined and sharded by us, byte for byte.
#include "accelerate/checkpoint/store/merge_weights.h"

#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/store/safetensors_header.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launch_test_support.h"
#include "support/checks.h"
#include "support/fault_file_system.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;
using accelerate::testing::read_file;
using accelerate::testing::TempDir;

namespace {

using Names = std::vector<std::string>;

std::string golden(const std::string& name) {
  return std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/merge_weights/" + name;
}

std::string refusal(const std::string& input, const std::string& output, const MergeOptions& options = {}) {
  return error_of<Error>([&] { merge_weights(system_files(), input, output, options); });
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return out + header + data;
}

void write(const std::string& path, const std::string& content) {
  system_files().create_directories(parent_directory(path));
  write_file_atomically(system_files(), path, content);
}

// A file of one F32 tensor of two elements a name.
std::string file_of(const Names& names, const std::string& metadata = {}) {
  std::string header = metadata.empty() ? "{" : concat("{\"__metadata__\":", metadata, ",");
  for (size_t i = 0; i < names.size(); ++i) {
    header += concat(i == 0 ? "" : ",", "\"", names[i], R"(":{"dtype":"F32","shape":[2],"data_offsets":[)",
                     8 * i, ",", 8 * i + 8, "]}");
  }
  return safetensors(header + "}", std::string(8 * names.size(), 'd'));
}

std::string header_refusal(const std::string& content) {
  const TempDir dir;
  write(dir / "m.safetensors", content);
  return error_of<CheckpointError>([&] { read_safetensors_header(system_files(), dir / "m.safetensors"); });
}

}  // namespace

TEST_CASE("shards of HF's become the file that Python's safetensors writes", "[store]") {
  const TempDir dir;
  for (const char* input : {"sharded", "resharded", "merged", "merged/model.safetensors",
                            "sharded/model.safetensors.index.json"}) {
    INFO(input);
    const std::string output =
        dir / concat("out-", std::string(input).substr(0, 4), std::string(input).size());
    const MergeResult result = merge_weights(system_files(), golden(input), output);
    CHECK(result.files == Names{output + "/model.safetensors"});
    CHECK(result.tensors == 13);
    CHECK(result.tied.empty());
    CHECK(read_file(result.files[0]) == read_file(golden("merged/model.safetensors")));
    CHECK(system_files().list(output) == Names{"model.safetensors"});
  }
  const MergeResult named = merge_weights(system_files(), golden("sharded"), dir / "whole.safetensors");
  CHECK(named.files == Names{dir / "whole.safetensors"});
  CHECK(read_file(named.files[0]) == read_file(golden("merged/model.safetensors")));
}

TEST_CASE("one file becomes the shards and the index that huggingface_hub writes", "[store]") {
  const TempDir dir;
  for (const auto& [folder, size] : {std::pair{"sharded", "0.2KB"}, {"resharded", "100"}}) {
    INFO(folder);
    const std::string output = dir / folder;
    const MergeResult result =
        merge_weights(system_files(), golden("merged"), output, {.max_shard_bytes = parse_shard_size(size)});
    CHECK(system_files().list(output) == system_files().list(golden(folder)));
    for (const std::string& name : system_files().list(output)) {
      INFO(name);
      const std::string ours = read_file(path_in(output, name));
      const std::string theirs = read_file(path_in(golden(folder), name));
      if (name.ends_with(".json")) {
        CHECK(nlohmann::json::parse(ours) == nlohmann::json::parse(theirs));
      } else {
        CHECK(ours == theirs);
      }
    }
    CHECK(result.files.back() == output + "/model.safetensors.index.json");
  }
}

TEST_CASE("sizes are read as huggingface_hub reads them", "[store]") {
  const auto sizes = nlohmann::json::parse(read_file(golden("sizes.json")));
  CHECK(sizes.size() == 6);
  for (const auto& [text, bytes] : sizes.items()) CHECK(parse_shard_size(text) == bytes.get<uint64_t>());
  CHECK(parse_shard_size("12345") == 12345);
  for (const char* bad : {"", "GB", "5XB", "-1GB", "0", "0.1", "nan", "1e30TB", "5 G B"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_shard_size(bad), ConfigError);
  }
}

// The example in huggingface_hub's documentation of split_state_dict_into_shards_factory.
TEST_CASE("tensors are dealt out as documented", "[store]") {
  const ShardPlan plan = plan_shards({6, 6, 2, 6, 2, 2}, 10);
  CHECK(plan.shards == std::vector<std::vector<size_t>>{{0}, {1, 2}, {3, 4, 5}});
  CHECK(plan.total_bytes == 24);
  CHECK(plan_shards({1, 20, 1}, 10).shards == std::vector<std::vector<size_t>>{{1}, {0, 2}});
  CHECK(plan_shards({}, 10).shards.size() == 1);
}

TEST_CASE("an index and files that do not agree are named", "[store]") {
  const TempDir dir;
  const std::string index = dir / "in/model.safetensors.index.json";
  write(dir / "in/model-00001-of-00002.safetensors", file_of({"a", "b"}));
  write(dir / "in/model-00002-of-00002.safetensors", file_of({"c", "e"}));
  write(index,
        R"({"weight_map":{"a":"model-00001-of-00002.safetensors","c":"model-00001-of-00002.safetensors",
                   "d":"model-00002-of-00002.safetensors","e":"model-00002-of-00002.safetensors"}})");
  const std::string said = refusal(dir / "in", dir / "out");
  CHECK_THAT(said, ContainsSubstring("no file holds: 'd'") && ContainsSubstring("another file holds: 'c'") &&
                       ContainsSubstring("does not name: 'b'"));
  CHECK_FALSE(system_files().exists(dir / "out"));
  write(index, R"({"weight_map":{"a":"gone.safetensors"}})");
  CHECK_THAT(refusal(dir / "in", dir / "out"), ContainsSubstring("not there: 'gone.safetensors'"));
  write(index, concat(R"({"weight_map":)", std::string(100000, '[')));
  CHECK_THAT(refusal(dir / "in", dir / "out"), ContainsSubstring("nested too deeply"));
  write(index, R"({"weight_map":{"a":"../x.safetensors"}})");
  CHECK_THAT(refusal(dir / "in", dir / "out"), ContainsSubstring("no name beside the index"));
  write(index, "{");
  CHECK_THAT(refusal(dir / "in", dir / "out"), ContainsSubstring("no valid JSON"));
  system_files().remove(index);
  CHECK(merge_weights(system_files(), dir / "in", dir / "out").tensors == 4);
  write(dir / "in/model-00002-of-00002.safetensors", file_of({"c", "a"}));
  CHECK_THAT(refusal(dir / "in", dir / "new"), ContainsSubstring("holds too: 'a'"));
  system_files().remove(dir / "in/model-00002-of-00002.safetensors");
  CHECK_THAT(refusal(dir / "in", dir / "new"),
             ContainsSubstring("shards are missing: 'model-00002-of-00002.safetensors'"));
  write(dir / "dcp/__0_0.distcp", "x");
  CHECK_THAT(refusal(dir / "dcp", dir / "new"), ContainsSubstring("torch.distributed.checkpoint"));
  CHECK_THAT(refusal(dir / "none", dir / "new"), ContainsSubstring("no such file or folder"));
}

TEST_CASE("tied tensors go in once, metadata is kept", "[store]") {
  const TempDir dir;
  write(dir / "in/model-1.safetensors",
        safetensors(R"({"__metadata__":{"format":"pt","by":"x"},"b.tied":{"dtype":"F32","shape":[2],)"
                    R"("data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    "01234567"));
  write(dir / "in/model-2.safetensors", file_of({"c"}, R"({"format":"pt","by":"y","more":"z"})"));
  const MergeResult result = merge_weights(system_files(), dir / "in", dir / "out");
  CHECK(result.tied == std::vector<std::pair<std::string, std::string>>{{"b.tied", "a"}});
  REQUIRE(result.notes.size() == 1);
  CHECK_THAT(result.notes[0], ContainsSubstring("metadata 'by' is 'x' in one file and 'y'"));
  const SafetensorsHeader header = read_safetensors_header(system_files(), result.files[0]);
  CHECK(header.tensors.size() == 2);
  CHECK(header.data_bytes() == 16);
  CHECK(header.metadata ==
        std::map<std::string, std::string>{{"b.tied", "a"}, {"by", "x"}, {"format", "pt"}, {"more", "z"}});
}

TEST_CASE("what is at the output stays unless it is to be replaced, and then as a whole", "[store]") {
  const TempDir dir;
  const std::string output = dir / "out";
  merge_weights(system_files(), golden("merged"), output, {.max_shard_bytes = 100});
  CHECK_THAT(refusal(golden("merged"), output),
             ContainsSubstring("weights are there already") && ContainsSubstring("--overwrite"));
  write(dir / "out/model-card.md", "mine");
  merge_weights(system_files(), golden("sharded"), output, {.overwrite = true});
  CHECK(system_files().list(output) == Names{"model-card.md", "model.safetensors"});
  CHECK_THAT(refusal(output, output, {.overwrite = true}), ContainsSubstring("which is read"));
  CHECK(read_file(output + "/model.safetensors") == read_file(golden("merged/model.safetensors")));
}

// At no moment is there an index whose files are not the ones it was written with.
TEST_CASE("a merge that is killed leaves the old weights, no index, or the new ones", "[store]") {
  int64_t operations = 0;
  for (int64_t at = 1;; ++at) {
    const TempDir dir;
    const std::string output = dir / "out";
    merge_weights(system_files(), golden("merged"), output, {.max_shard_bytes = 100});
    FaultFileSystem dying(system_files(), Fault::kStop, at);
    try {
      merge_weights(dying, golden("merged"), output, {.max_shard_bytes = 200, .overwrite = true});
    } catch (const Stopped&) {
    }
    INFO("operation " << at);
    if (system_files().exists(output + "/model.safetensors.index.json")) {
      const MergeResult again = merge_weights(system_files(), output, dir / "again");
      CHECK(read_file(again.files[0]) == read_file(golden("merged/model.safetensors")));
    }
    merge_weights(system_files(), golden("merged"), output, {.max_shard_bytes = 200, .overwrite = true});
    CHECK(system_files().list(output) == system_files().list(golden("sharded")));
    if (!dying.has_struck()) break;
    operations = at;
  }
  CHECK(operations > 8);
}

TEST_CASE("damaged headers are named", "[store]") {
  const auto one = [](const std::string& entry) {
    return safetensors(concat("{\"a\":", entry, "}"), "01234567");
  };
  CHECK_THAT(header_refusal(""), ContainsSubstring("only 0 bytes"));
  CHECK_THAT(header_refusal(std::string(8, '\xff')), ContainsSubstring("no such file begins like this"));
  CHECK_THAT(header_refusal(file_of({"a"}).substr(0, 40)),
             ContainsSubstring("its header has 54 bytes, and 32 are there"));
  CHECK_THAT(header_refusal(file_of({"a"}).substr(0, file_of({"a"}).size() - 1)),
             ContainsSubstring("'a' lies past the end"));
  CHECK_THAT(header_refusal(file_of({"a", "a"})), ContainsSubstring("'a' is there twice"));
  CHECK_THAT(header_refusal(safetensors("{]", "")), ContainsSubstring("can't be read"));
  CHECK_THAT(header_refusal(safetensors("[]", "")), ContainsSubstring("no object"));
  CHECK_THAT(header_refusal(safetensors(concat("{\"a\":", std::string(100000, '[')), "")),
             ContainsSubstring("nested"));
  CHECK_THAT(header_refusal(one("1")), ContainsSubstring("lacks dtype"));
  CHECK_THAT(header_refusal(one(R"({"dtype":"X9","shape":[2],"data_offsets":[0,8]})")),
             ContainsSubstring("unknown dtype X9"));
  CHECK_THAT(header_refusal(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})")),
             ContainsSubstring("not possible"));
  CHECK_THAT(header_refusal(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})")),
             ContainsSubstring("not possible"));
  CHECK_THAT(header_refusal(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})")),
             ContainsSubstring("another number of bytes"));
  CHECK_THAT(header_refusal(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})")),
             ContainsSubstring("ends before it begins"));
  CHECK_THAT(header_refusal(safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                                        "012345")),
             ContainsSubstring("'a' and 'b' overlap"));
  CHECK_THAT(header_refusal(safetensors(R"({"__metadata__":{"a":1}})", "")), ContainsSubstring("is no text"));
}
