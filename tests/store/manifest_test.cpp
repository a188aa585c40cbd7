#include "accelerate/checkpoint/store/manifest.h"

#include <algorithm>
#include <span>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"
#include "support/checks.h"
#include "support/memory_files.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

CheckpointManifest example() {
  return {.accelerate_version = "0.1.0",
          .time = "2026-01-31T12:00:00.000000Z",
          .iteration = 3,
          .optimizer_steps = 1200,
          .epoch = 2,
          .world_size = 4,
          .strategy = "ddp",
          .extra = R"({"loss":0.1,"note":"ü","list":[1,2.5,-0.0,1e+300]})",
          .files = {{"rank_1/optimizer.bin", 5, 0x0123456789abcdef}, {"model.safetensors", 1u << 31, 7}}};
}

std::string refusal(const std::string& text) {
  return error_of<CheckpointError>([&] { parse_manifest(text, "run/manifest.json"); });
}

// The text with one part replaced; the part has to be there.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = write_manifest(example());
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// As above with the manifest's own checksum made to fit, as a program would that wrote it so.
std::string written_as(const std::string& from, const std::string& to) {
  const std::string said = refusal(changed(from, to));
  const size_t at = said.find("its checksum is ");
  if (at == std::string::npos) return changed(from, to);
  const std::string sum = said.substr(at + 16, 16);
  std::string text = changed(from, to);
  text.replace(text.find("manifest_xxh3_64") + 20, 16, sum);
  return text;
}

}  // namespace

// From `xxhsum -H3` 0.8.1; the last is of the bytes (7 i + 3) % 251, i < 1000003.
TEST_CASE("XXH3 sums of pieces and wholes are those of xxhsum", "[store]") {
  CHECK(checksum_text(Xxh3::of("")) == "2d06800538d394c2");
  CHECK(checksum_text(Xxh3::of("abc")) == "78af5f94892f3950");
  std::string text(1000003, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>((i * 7 + 3) % 251);
  CHECK(checksum_text(Xxh3::of(text)) == "e8082f5864c32f3f");
  Xxh3 sum;
  for (size_t at = 0, step = 1; at < text.size(); at += step, step = step * 3 % 4099 + 1) {
    sum.update(std::as_bytes(std::span(text).subspan(at, std::min(step, text.size() - at))));
  }
  CHECK(checksum_text(sum.digest()) == "e8082f5864c32f3f");
  CHECK(parse_checksum("2d06800538d394c2") == 0x2d06800538d394c2);
  for (const char* bad :
       {"", "2d06800538d394c", "2d06800538d394c22", "2D06800538D394C2", "2d06800538d394cg"}) {
    CHECK_FALSE(parse_checksum(bad));
  }
}

TEST_CASE("a manifest comes back as it was written", "[store]") {
  CheckpointManifest expected = example();
  std::swap(expected.files[0], expected.files[1]);  // sorted by path
  const CheckpointManifest found = parse_manifest(write_manifest(example()), "m");
  CHECK(found.format_version == 1);
  CHECK(found.accelerate_version == "0.1.0");
  CHECK(found.time == expected.time);
  CHECK(found.iteration == 3);
  CHECK(found.optimizer_steps == 1200);
  CHECK(found.epoch == 2);
  CHECK(found.world_size == 4);
  CHECK(found.strategy == "ddp");
  CHECK(found.extra == expected.extra);
  CHECK(found.files == expected.files);
  CHECK(found.total_bytes() == (uint64_t{1} << 31) + 5);
  const CheckpointManifest empty = parse_manifest(write_manifest({}), "m");
  CHECK(empty.accelerate_version == kVersion);
  CHECK(empty.time.size() == 27);
  CHECK(empty.time.ends_with("Z"));
  CHECK(empty.extra == "{}");
}

TEST_CASE("a damaged manifest is named with what is wrong", "[store]") {
  const std::string good = write_manifest(example());
  CHECK_THAT(refusal(""), ContainsSubstring("run/manifest.json: the file is empty"));
  CHECK_THAT(refusal(std::string(40, '\0')), ContainsSubstring("40 zero bytes"));
  CHECK_THAT(refusal("{]"), ContainsSubstring("no valid JSON at byte 2"));
  CHECK_THAT(refusal("[]"), ContainsSubstring("no object"));
  CHECK_THAT(refusal("{\"a\":1}"), ContainsSubstring("no manifest of a checkpoint"));
  CHECK_THAT(refusal(concat("{\"a\":", std::string(100000, '['))), ContainsSubstring("nested"));
  CHECK_THAT(refusal(changed("1200", "1e700")), ContainsSubstring("its JSON can't be read"));
  CHECK_THAT(refusal(changed("1200", "1201")), ContainsSubstring("some of it was changed"));
  CHECK_THAT(refusal(changed("0123456789abcdef", "0123456789abcdee")), ContainsSubstring("was changed"));
  CHECK_THAT(refusal(changed("\"epoch\"", "\"epohc\"")), ContainsSubstring("was changed"));
  CHECK_THAT(refusal(written_as("\"epoch\"", "\"epohc\"")), ContainsSubstring("lacks 'epoch'"));
  CHECK_THAT(refusal(written_as("\"iteration\": 3", "\"iteration\": -3")),
             ContainsSubstring("'iteration' should be a whole number from 0 on and is -3"));
  CHECK_THAT(refusal(written_as("\"iteration\": 3", "\"iteration\": 99999999999999999999")),
             ContainsSubstring("'iteration'"));
  CHECK_THAT(refusal(written_as("\"ddp\"", "7")), ContainsSubstring("'strategy' should be a text and is 7"));
  CHECK_THAT(refusal(written_as("model.safetensors", "../model.safetensors")),
             ContainsSubstring("'../model.safetensors' is no name below"));
  CHECK_THAT(refusal(written_as("model.safetensors", "/etc/passwd")), ContainsSubstring("no name below"));
  CHECK_THAT(refusal(written_as("model.safetensors", "rank_1/optimizer.bin")),
             ContainsSubstring("listed twice"));
  CHECK_THAT(refusal(written_as("model.safetensors", "manifest.json")), ContainsSubstring("own name"));
  CHECK_THAT(refusal(written_as("\"0123456789abcdef\"", "\"x\"")), ContainsSubstring("16 hexadecimal"));
}

// Whatever one byte becomes, and wherever the text ends, it is an error of ours and never another manifest.
TEST_CASE("every cut and every changed byte is found", "[store]") {
  const std::string good = write_manifest(example());
  for (size_t length = 0; length + 2 < good.size(); ++length) {
    INFO(length);
    CHECK_THROWS_AS(parse_manifest(good.substr(0, length), "m"), CheckpointError);
  }
  const std::string same = write_manifest(parse_manifest(good, "m"));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 4, 32, 128}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      try {
        // Blanks between members may change without harm.
        if (write_manifest(parse_manifest(bad, "m")) != same) FAIL("read as another one: byte " << at);
      } catch (const CheckpointError&) {
      }
    }
  }
}

TEST_CASE("a newer format is refused with both versions", "[store]") {
  const std::string said = refusal(changed("\"format_version\": 1", "\"format_version\": 2"));
  CHECK_THAT(said,
             ContainsSubstring("expected format version 1 or older, got version 2, written by accelerate") &&
                 ContainsSubstring("newer release"));
  CHECK_THAT(refusal(changed("\"format_version\": 1", "\"format_version\": 0")),
             ContainsSubstring("does not exist"));
}

TEST_CASE("a manifest that could not be read is not written", "[store]") {
  CheckpointManifest manifest = example();
  manifest.extra = "[1]";
  CHECK_THROWS_WITH(write_manifest(manifest), ContainsSubstring("expected one JSON object"));
  for (const char* path : {"", "/a", "a/", "a//b", "../a", "a/../b", ".", "manifest.json"}) {
    INFO(path);
    manifest = example();
    manifest.files[0].path = path;
    CHECK_THROWS_AS(write_manifest(manifest), CheckpointError);
  }
}

TEST_CASE("names of what saves leave behind", "[store]") {
  for (const auto kind : {LeftoverKind::kDraft, LeftoverKind::kOld, LeftoverKind::kRemoving}) {
    const auto found = parse_leftover(leftover_name("checkpoint_3", kind));
    REQUIRE(found);
    CHECK(found->final_name == "checkpoint_3");
    CHECK(found->kind == kind);
  }
  const auto lock = parse_leftover(lock_name("a.b.draft-0123456789abcdef"));
  REQUIRE(lock);
  CHECK(lock->kind == LeftoverKind::kLock);
  CHECK(lock->final_name == "a.b");
  for (const char* other :
       {"checkpoint_3", "x.draft-", "x.draft-0123456789abcde", "x.draft-0123456789abcdeg",
        ".draft-0123456789abcdef", "x.old-0123456789abcdef.lock", "0123456789abcdef", ""}) {
    INFO(other);
    CHECK_FALSE(parse_leftover(other));
  }
  CHECK(checkpoint_number("checkpoint_12") == 12);
  for (const char* other :
       {"checkpoint_", "checkpoint_01", "checkpoint_-1", "checkpoint_1x", "checkpoint-1"}) {
    INFO(other);
    CHECK_FALSE(checkpoint_number(other));
  }
}
