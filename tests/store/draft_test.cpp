// Drafts on the real file system, with real processes that are killed.
#include "accelerate/checkpoint/store/draft.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "accelerate/checkpoint/store/draft_owner.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/listing.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/core/error.h"
#include "launch_test_support.h"
#include "support/checks.h"
#include "support/memory_files.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;
using accelerate::testing::TempDir;

namespace {

void save(FileSystem& files, const std::string& path, const std::string& text) {
  auto draft = CheckpointDraft::create(files, path);
  CheckpointManifest manifest{
      .files = {draft.write_file("a.bin", text), draft.write_file("b/c.bin", text + "c")}};
  CHECK(draft.commit(manifest).empty());
}

std::string content(FileSystem& files, const std::string& path) {
  const auto found = verify_checkpoint(files, path, VerifyLevel::kFull);
  return found.complete() ? read_whole_file(files, path_in(path, "a.bin")) : found.reason();
}

}  // namespace

TEST_CASE("a checkpoint is written, replaced and discarded, and leaves nothing else", "[store]") {
  const TempDir dir;
  FileSystem& files = system_files();
  const std::string path = dir / "new/folder/checkpoint_0";
  save(files, path + "/", "one");
  CHECK(content(files, path) == "one");
  save(files, path, "two");
  CHECK(content(files, path) == "two");
  {
    auto draft = CheckpointDraft::create(files, path);
    draft.write_file("a.bin", std::string("three"));
    CHECK(files.list(dir / "new/folder").size() == 3);
  }
  CHECK(content(files, path) == "two");
  CHECK(files.list(dir / "new/folder") == std::vector<std::string>{"checkpoint_0"});
  CHECK(files.list(path) == std::vector<std::string>{"a.bin", "b", "manifest.json"});
  CHECK(verify_checkpoint(files, path, VerifyLevel::kFull).other_files.empty());
}

TEST_CASE("names are exchanged where the file system can, else one is put aside", "[store]") {
  const TempDir dir;
  FileSystem& files = system_files();
  write_file_atomically(files, dir / "a", std::string("1"));
  write_file_atomically(files, dir / "b", std::string("2"));
  const bool can = files.exchange(dir / "a", dir / "b");
  std::cout << "exchange of names: " << (can ? "yes" : "not on this file system") << "\n";
  CHECK(read_whole_file(files, dir / "a") == (can ? "2" : "1"));
  CHECK_THROWS_AS(files.exchange(dir / "a", dir / "none"), CheckpointError);
  MemoryFiles without(MemoryFiles::Options{.has_exchange = false});
  save(without, "checkpoint_0", "one");
  save(without, "checkpoint_0", "two");
  CHECK(content(without, "checkpoint_0") == "two");
  CHECK(without.list(".") == std::vector<std::string>{"checkpoint_0"});
}

TEST_CASE("several writers, one commit; a file that is not here is named", "[store]") {
  const TempDir dir;
  FileSystem& files = system_files();
  const std::string path = dir / "checkpoint_1";
  auto draft = CheckpointDraft::create(files, path);
  std::vector<CheckpointFile> entries(4);
  std::vector<std::thread> writers;
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    writers.emplace_back([&, rank] {
      auto other = CheckpointDraft::join(files, draft.path());
      entries[rank] = other.write_file(concat("rank_", rank, "/data.bin"), std::string(100 * rank, 'x'));
    });
  }
  for (std::thread& writer : writers) writer.join();
  auto joined = CheckpointDraft::join(files, draft.path());
  CHECK(joined.final_path() == path);
  CHECK_THROWS_WITH(joined.commit({.files = entries}), ContainsSubstring("the process that made the draft"));
  CheckpointManifest more{.files = entries};
  more.files.push_back({.path = "rank_4/data.bin", .size_bytes = 7});
  CHECK_THROWS_WITH(draft.commit(more), ContainsSubstring("rank_4/data.bin") &&
                                            ContainsSubstring("7 bytes") &&
                                            ContainsSubstring("all machines share"));
  write_file_atomically(files, path_in(draft.path(), "by_hand.bin"), std::string("abc"));
  entries.push_back(draft.add_file("by_hand.bin"));
  CHECK(entries.back().xxh3_64 == 0x78af5f94892f3950);
  CHECK(draft.commit({.files = entries}).empty());
  CHECK(verify_checkpoint(files, path, VerifyLevel::kFull).complete());
  CHECK_THROWS_WITH(draft.commit({}), ContainsSubstring("committed or discarded already"));
  CHECK_THROWS_AS(CheckpointDraft::join(files, draft.path()), CheckpointError);
  CHECK_THROWS_AS(CheckpointDraft::join(files, path), CheckpointError);
}

TEST_CASE("what is no checkpoint is not replaced", "[store]") {
  const TempDir dir;
  FileSystem& files = system_files();
  files.create_directories(dir / "mine/data");
  CHECK_THROWS_WITH(CheckpointDraft::create(files, dir / "mine"),
                    ContainsSubstring("a folder with other things"));
  write_file_atomically(files, dir / "file", std::string("x"));
  CHECK_THROWS_WITH(CheckpointDraft::create(files, dir / "file"), ContainsSubstring("got a file"));
  REQUIRE(::symlink("mine", (dir / "link").c_str()) == 0);
  CHECK_THROWS_WITH(CheckpointDraft::create(files, dir / "link"), ContainsSubstring("symbolic link"));
  CHECK_THROWS_WITH(CheckpointDraft::create(files, "/"), ContainsSubstring("name of its own"));
  files.create_directories(dir / "empty");
  save(files, dir / "empty", "x");
  CHECK(content(files, dir / "empty") == "x");
  CHECK(files.list(dir.path()) == std::vector<std::string>{"empty", "file", "link", "mine"});
  auto draft = CheckpointDraft::create(files, dir / "c");
  for (const char* name : {"../x", "/x", "", "manifest.json", "a/../../x"}) {
    INFO(name);
    CHECK_THROWS_AS(draft.write_file(name, std::string("x")), CheckpointError);
  }
}

TEST_CASE("a full disk is told with the bytes needed and free", "[store]") {
  const auto file = system_files().create("/dev/full");
  const std::string said = error_of<CheckpointError>([&] {
    file->write(std::as_bytes(std::span("0123456789", 10)));
    file->sync();
  });
  CHECK_THAT(said, ContainsSubstring("writing 10 bytes to /dev/full") && ContainsSubstring("bytes (") &&
                       ContainsSubstring("free there") && ContainsSubstring("Free some space"));
  MemoryFiles small(MemoryFiles::Options{.free_bytes = 1000});
  CHECK_THROWS_WITH(require_free_bytes(small, "not/there/yet", 5000),
                    ContainsSubstring("5000 bytes") && ContainsSubstring("1000 bytes free"));
  require_free_bytes(small, "x", 1000);
}

TEST_CASE("drafts of live processes stay, those of dead ones go", "[store]") {
  for (const bool has_locks : {true, false}) {
    for (const bool is_local : {true, false}) {
      INFO("locks " << has_locks << ", local " << is_local);
      MemoryFiles files(MemoryFiles::Options{.has_locks = has_locks, .is_local = is_local});
      auto live = CheckpointDraft::create(files, "run/checkpoint_1");
      live.write_file("a.bin", std::string("x"));
      const RecoveryReport report = recover_folder(files, "run");
      CHECK(report.removed.empty());
      REQUIRE(report.left_alone.size() == 1);
      CHECK_THAT(report.left_alone[0], ContainsSubstring("another process is writing it"));
      save(files, "run/checkpoint_1", "other");
      CHECK(files.exists(live.path()));
      // A process that has ended: a pid that nobody has, with the rest of the record as it is.
      files.drop_locks();
      std::string& record = files.content(lock_name(live.path()));
      const std::string own = record;
      const std::vector<std::string> parts = split(trim(record), '|');
      record = concat(parts[0], "|", parts[1], "|", parts[2], "|4194305|", parts[4]);
      CHECK(owner_state(own) == OwnerState::kAlive);
      CHECK(owner_state(record) == OwnerState::kDead);
      CHECK(recover_folder(files, "run").removed.size() == 1);
      CHECK(files.list("run") == std::vector<std::string>{"checkpoint_1"});
    }
  }
}

TEST_CASE("a draft of another machine without shared locks waits for a day", "[store]") {
  MemoryFiles files(MemoryFiles::Options{.is_local = false});
  auto draft = CheckpointDraft::create(files, "run/checkpoint_1");
  files.drop_locks();
  files.content(lock_name(draft.path())) = "elsewhere|boot|pid:[1]|77|123\n";
  CHECK(owner_state("elsewhere|boot|pid:[1]|77|123\n") == OwnerState::kUnknown);
  CHECK(owner_state("") == OwnerState::kUnknown);
  const RecoveryReport report = recover_folder(files, "run");
  CHECK(report.removed.empty());
  CHECK_THAT(join(report.left_alone, ""), ContainsSubstring("another machine (elsewhere)"));
  const int64_t long_ago = static_cast<int64_t>(std::time(nullptr)) - kForeignDraftSeconds - 60;
  files.set_modified(draft.path(), long_ago);
  CHECK(recover_folder(files, "run").removed.empty());
  files.set_modified(lock_name(draft.path()), long_ago);
  CHECK(recover_folder(files, "run").removed.size() == 1);
  CHECK(files.list("run").empty());
}

TEST_CASE("a pid that was given to another process is not the owner", "[store]") {
  std::vector<std::string> parts = split(trim(owner_record()), '|');
  REQUIRE(parts.size() == 5);
  parts[4] = "1";
  CHECK(owner_state(join(parts, "|")) == OwnerState::kDead);
}

// The real thing: a process saves over and over, alternating new names and old ones, and is killed.
TEST_CASE("SIGKILL at any time leaves a complete checkpoint", "[store]") {
  const TempDir dir;
  FileSystem& files = system_files();
  const std::string folder = dir / "run";
  int64_t newest = -1;
  int kills = 0;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (int64_t number = std::max<int64_t>(newest, 0);; ++number) {
          for (const char* text : {"first", "second"}) {
            auto draft = CheckpointDraft::create(files, path_in(folder, checkpoint_name(number)));
            CheckpointManifest manifest{.iteration = number,
                                        .files = {draft.write_file("a.bin", std::string(text))}};
            draft.commit(manifest);
            rotate_checkpoints(files, folder, 2, checkpoint_name(number));
          }
        }
      } catch (const std::exception&) {
      }
      ::_exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 7 * (round % 9)));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // an exit would be a save that failed
    ++kills;
    const auto found = find_newest_checkpoint(files, folder, VerifyLevel::kFull);
    if (newest >= 0) REQUIRE(found);
    if (!found) continue;
    CHECK(found->number >= newest);
    newest = found->number;
    // Cleaned up: nothing but checkpoints, which may be one too many when the removal was cut off.
    for (const std::string& name : files.list(folder)) CHECK(checkpoint_number(name));
    CHECK(files.list(folder).size() <= 3);
  }
  std::cout << kills << " kills, " << newest + 1 << " checkpoints\n";
  CHECK(newest >= 0);
}
