#include "accelerate/checkpoint/store/listing.h"

#include "accelerate/checkpoint/store/draft.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "support/checks.h"
#include "support/memory_files.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

using Names = std::vector<std::string>;

void save(FileSystem& files, const std::string& path, const std::string& text = "data") {
  auto draft = CheckpointDraft::create(files, path);
  CheckpointManifest manifest{
      .files = {draft.write_file("a.bin", text), draft.write_file("b/c.bin", std::string(3000000, 'c'))}};
  draft.commit(manifest);
}

void save_numbers(FileSystem& files, const std::vector<int64_t>& numbers) {
  for (const int64_t number : numbers) save(files, path_in("run", checkpoint_name(number)));
}

Names names(const CheckpointListing& listing) {
  Names out;
  for (const auto& checkpoint : listing.checkpoints) out.push_back(checkpoint.name);
  return out;
}

std::string reason(const CheckpointListing& listing, const std::string& name) {
  for (const auto& entry : listing.skipped) {
    if (entry.name == name) return entry.reason;
  }
  return "not skipped";
}

}  // namespace

TEST_CASE("the newest complete checkpoint by number; others are named with the reason", "[store]") {
  MemoryFiles files;
  save_numbers(files, {2, 10, 9, 11, 12, 13});
  files.remove("run/checkpoint_11/a.bin");
  files.content("run/checkpoint_12/manifest.json").resize(100);
  files.remove("run/checkpoint_13/manifest.json");
  files.create_directories("run/logs");
  files.create("run/notes.txt", 0644);
  save(files, "run/best");
  files.create_directories("run/checkpoint_3.removing-0123456789abcdef");
  const CheckpointListing listing = list_checkpoints(files, "run");
  CHECK(names(listing) == Names{"checkpoint_2", "checkpoint_9", "checkpoint_10"});
  REQUIRE(listing.newest() != nullptr);
  CHECK(listing.newest()->number == 10);
  CHECK(listing.newest()->path == "run/checkpoint_10");
  CHECK(reason(listing, "checkpoint_11") == "a.bin: missing");
  CHECK_THAT(reason(listing, "checkpoint_12"), ContainsSubstring("cut off after 100 bytes"));
  CHECK_THAT(reason(listing, "checkpoint_13"), ContainsSubstring("no manifest.json"));
  CHECK_THAT(reason(listing, "logs"), ContainsSubstring("its name is not checkpoint_0"));
  CHECK_THAT(reason(listing, "best"), ContainsSubstring("its name is not"));
  CHECK_THAT(reason(listing, "checkpoint_3.removing-0123456789abcdef"), ContainsSubstring("removed"));
  CHECK(listing.skipped.size() == 6);
  CHECK_FALSE(find_newest_checkpoint(files, "nothing/here"));
  CHECK_THROWS_AS(list_checkpoints(files, "nothing/here"), CheckpointError);
}

TEST_CASE("sizes alone miss what checksums find", "[store]") {
  MemoryFiles files;
  save_numbers(files, {1, 2});
  files.content("run/checkpoint_2/b/c.bin")[2999999] = 'x';
  CHECK(find_newest_checkpoint(files, "run")->number == 2);
  CHECK(find_newest_checkpoint(files, "run", VerifyLevel::kFull)->number == 1);
}

TEST_CASE("a verification tells every problem, and how far it is", "[store]") {
  MemoryFiles files;
  save(files, "c");
  files.content("c/a.bin") = "datA";
  files.content("c/b/c.bin").resize(5);
  files.create("c/stray", 0644);
  auto quick = verify_checkpoint(files, "c", VerifyLevel::kQuick);
  REQUIRE(quick.problems.size() == 1);
  CHECK(quick.problems[0].path == "b/c.bin");
  CHECK(quick.problems[0].what == "cut off: 5 of 3000000 bytes are there");
  CHECK(quick.other_files == Names{"stray"});
  auto full = verify_checkpoint(files, "c", VerifyLevel::kFull);
  REQUIRE(full.problems.size() == 2);
  CHECK_THAT(full.reason(),
             ContainsSubstring("a.bin: damaged: its checksum is") && ContainsSubstring("; b/c.bin"));
  save(files, "d");
  std::vector<uint64_t> done;
  const auto found = verify_checkpoint(files, "d", VerifyLevel::kFull, [&](const VerifyProgress& progress) {
    CHECK(progress.total_bytes == 3000004);
    done.push_back(progress.done_bytes);
  });
  CHECK(found.complete());
  CHECK(done == std::vector<uint64_t>{4, 1048580, 2097156, 3000004});
  CHECK(verify_checkpoint(files, "none", VerifyLevel::kQuick).reason() == "not there");
}

TEST_CASE("rotation keeps the newest complete ones and touches nobody else's", "[store]") {
  MemoryFiles files;
  save_numbers(files, {1, 2, 3, 4, 5, 6});
  files.remove("run/checkpoint_2/a.bin");          // damaged and old
  files.remove("run/checkpoint_5/a.bin");          // damaged and newer than what stays
  files.remove("run/checkpoint_1/manifest.json");  // who knows whose
  files.create_directories("run/logs");
  CHECK(rotate_checkpoints(files, "run", 2, "checkpoint_6") == Names{"checkpoint_2", "checkpoint_3"});
  CHECK(files.list("run") == Names{"checkpoint_1", "checkpoint_4", "checkpoint_5", "checkpoint_6", "logs"});
  // A run that went back and is at a lower number now: the one just written always stays.
  save_numbers(files, {0});
  CHECK(rotate_checkpoints(files, "run", 1, "checkpoint_0") == Names{"checkpoint_4", "checkpoint_6"});
  CHECK(find_newest_checkpoint(files, "run")->number == 0);
  CHECK_THROWS_WITH(rotate_checkpoints(files, "run", 0, "checkpoint_0"), ContainsSubstring("total_limit"));
}

TEST_CASE("between two renames the checkpoint is found where it is, and gets its name back", "[store]") {
  MemoryFiles files;
  save_numbers(files, {1, 2});
  files.rename("run/checkpoint_2", "run/checkpoint_2.old-0123456789abcdef");
  CHECK(list_checkpoints(files, "run").newest()->path == "run/checkpoint_2.old-0123456789abcdef");
  CHECK(list_checkpoints(files, "run").newest()->name == "checkpoint_2");
  CHECK(find_newest_checkpoint(files, "run")->path == "run/checkpoint_2");
  CHECK(files.list("run") == Names{"checkpoint_1", "checkpoint_2"});
  // The new one is complete as well: it wins.
  save(files, "run/new", "new");
  files.rename("run/new", "run/checkpoint_2.draft-0123456789abcdef");
  files.rename("run/checkpoint_2", "run/checkpoint_2.old-0123456789abcdef");
  CHECK(list_checkpoints(files, "run").newest()->path == "run/checkpoint_2.draft-0123456789abcdef");
  const RecoveryReport report = recover_folder(files, "run");
  CHECK(report.restored == Names{"checkpoint_2"});
  CHECK(read_whole_file(files, "run/checkpoint_2/a.bin") == "new");
  CHECK(files.list("run") == Names{"checkpoint_1", "checkpoint_2"});
}

TEST_CASE("nothing complete is deleted while its name is damaged, missing or someone else's", "[store]") {
  MemoryFiles files;
  save_numbers(files, {1, 2});
  files.rename("run/checkpoint_2", "run/checkpoint_1.draft-0123456789abcdef");
  files.remove("run/checkpoint_1/a.bin");
  CHECK(recover_folder(files, "run").restored == Names{"checkpoint_1"});
  CHECK(files.list("run") == Names{"checkpoint_1"});
  CHECK(list_checkpoints(files, "run").checkpoints.size() == 1);

  files.rename("run/checkpoint_1", "run/checkpoint_1.draft-0123456789abcdef");
  files.create_directories("run/checkpoint_1/mine");
  const RecoveryReport report = recover_folder(files, "run");
  CHECK(report.removed.empty());
  CHECK_THAT(join(report.left_alone, ""), ContainsSubstring("is no checkpoint"));
  CHECK(files.list("run") == Names{"checkpoint_1", "checkpoint_1.draft-0123456789abcdef"});

  // Only a damaged old one is left: it gets its name, for whoever wants to look into it.
  MemoryFiles other;
  save_numbers(other, {1});
  other.rename("run/checkpoint_1", "run/checkpoint_1.old-0123456789abcdef");
  other.remove("run/checkpoint_1.old-0123456789abcdef/a.bin");
  CHECK(recover_folder(other, "run").restored == Names{"checkpoint_1"});
  CHECK(other.list("run") == Names{"checkpoint_1"});
}
