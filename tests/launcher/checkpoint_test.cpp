// `accel checkpoint` and `accel merge-weights` as typed.
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/store/draft.h"
#include "accelerate/checkpoint/store/safetensors_header.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::CheckpointDraft;
using accelerate::concat;
using accelerate::system_files;

namespace {

void save(const std::string& path, int64_t iteration) {
  auto draft = CheckpointDraft::create(system_files(), path);
  const std::string weights =
      accelerate::write_safetensors_header(
          {{.name = "fc.weight", .dtype = "BF16", .shape = {2, 3}, .begin = 0, .end = 12}},
          {{"format", "pt"}}) +
      std::string(12, 'w');
  accelerate::CheckpointManifest manifest{.iteration = iteration,
                                          .optimizer_steps = 70,
                                          .epoch = 1,
                                          .world_size = 2,
                                          .strategy = "ddp",
                                          .files = {draft.write_file("model.safetensors", weights)}};
  draft.commit(manifest);
}

struct Run {
  int code = -1;
  std::string out;
  std::string err;
};

Run accel(std::vector<std::string> words) {
  AccelRun run(std::move(words));
  const auto code = run.finish();
  return {code.value_or(-1), run.out(), run.err()};
}

std::string golden(const std::string& name) {
  return std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/merge_weights/" + name;
}

}  // namespace

TEST_CASE("inspect says what a checkpoint holds", "[launcher]") {
  const TempDir dir;
  save(dir / "run/checkpoint_3", 3);
  const Run text = accel({"checkpoint", "inspect", dir / "run/checkpoint_3", "--tensors"});
  CHECK(text.code == 0);
  CHECK_THAT(text.out,
             ContainsSubstring("checkpoint_3: complete") &&
                 ContainsSubstring("iteration 3, optimizer steps 70, epoch 1, world size 2, strategy ddp") &&
                 ContainsSubstring("model.safetensors") && ContainsSubstring("[2, 3]  12 bytes"));
  const Run json = accel({"checkpoint", "inspect", dir / "run", "--tensors", "--json"});
  CHECK(json.code == 0);
  const auto parsed = nlohmann::json::parse(json.out);
  CHECK(parsed["newest"] == dir / "run/checkpoint_3");
  const auto& one = parsed["checkpoints"][0];
  CHECK(one["complete"] == true);
  CHECK(one["manifest"]["optimizer_steps"] == 70);
  CHECK(one["tensors"]["model.safetensors"][0]["dtype"] == "BF16");
  CHECK(one["tensors"]["model.safetensors"][0]["bytes"] == 12);
}

TEST_CASE("verify finds what sizes do not show, and tells by its exit code", "[launcher]") {
  const TempDir dir;
  save(dir / "run/checkpoint_3", 3);
  save(dir / "run/checkpoint_4", 4);
  CHECK(accel({"checkpoint", "verify", dir / "run"}).code == 0);
  const std::string path = dir / "run/checkpoint_4/model.safetensors";
  std::string bytes = read_file(path);
  bytes.back() = 'x';
  write_file(path, bytes);
  CHECK(accel({"checkpoint", "verify", "--quick", dir / "run"}).code == 0);
  const Run full = accel({"checkpoint", "verify", dir / "run"});
  CHECK(full.code == 6);
  CHECK_THAT(full.out, ContainsSubstring("checkpoint_3: complete") &&
                           ContainsSubstring("checkpoint_4: NOT COMPLETE") &&
                           ContainsSubstring("model.safetensors: damaged: its checksum is") &&
                           ContainsSubstring("Newest complete: " + (dir / "run/checkpoint_3")));
  std::filesystem::remove(dir / "run/checkpoint_3/manifest.json");
  const Run half = accel({"checkpoint", "inspect", dir / "run"});
  CHECK(half.code == 6);
  CHECK_THAT(half.out, ContainsSubstring("checkpoint_3: passed over: no manifest.json"));
}

TEST_CASE("checkpoint's wrong usage and missing things", "[launcher]") {
  const TempDir dir;
  CHECK(accel({"checkpoint"}).code == 2);
  CHECK(accel({"checkpoint", "inspect"}).code == 2);
  CHECK(accel({"checkpoint", "inspekt", dir.path()}).code == 2);
  CHECK(accel({"checkpoint", "inspect", dir.path(), "--tensor"}).code == 2);
  CHECK(accel({"checkpoint", "inspect", dir / "none"}).code == 6);
  CHECK(accel({"checkpoint", "verify", dir.path()}).code == 6);
  CHECK_THAT(accel({"checkpoint", "verify", "--help"}).out, ContainsSubstring("Exit code: 0"));
}

TEST_CASE("merge-weights as typed", "[launcher]") {
  const TempDir dir;
  const Run one = accel({"merge-weights", golden("sharded"), dir / "out"});
  CHECK(one.code == 0);
  CHECK_THAT(one.out, ContainsSubstring("13 tensors") && ContainsSubstring("out/model.safetensors"));
  CHECK(read_file(dir / "out/model.safetensors") == read_file(golden("merged/model.safetensors")));
  const Run again = accel({"merge-weights", golden("sharded"), dir / "out"});
  CHECK(again.code == 2);
  CHECK_THAT(again.err, ContainsSubstring("--overwrite"));
  CHECK(accel({"merge-weights", dir / "out", dir / "shards", "--max-shard-size", "0.1KB",
               "--remove_checkpoint_dir"})
            .code == 0);
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
  CHECK(std::filesystem::exists(dir / "shards/model-00003-of-00003.safetensors"));
  CHECK(accel({"merge-weights", dir / "shards", dir / "x", "--max_shard_size", "5"}).code == 0);
  CHECK(accel({"merge-weights", dir / "shards", dir / "y", "--max_shard_size", "5PB"}).code == 2);
  CHECK(accel({"merge-weights", dir / "shards", dir / "y", "--unsafe_serialization"}).code == 2);
  CHECK(accel({"merge-weights", dir / "shards", dir / "shards/in", "--remove_checkpoint_dir"}).code == 2);
  CHECK(accel({"merge-weights", dir / "none", dir / "y"}).code == 6);
  CHECK(accel({"merge-weights", dir / "shards"}).code == 2);
}
