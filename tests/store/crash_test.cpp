// Saves that end at every point, as SQLite's crash tests do it: the N-th operation on files is the last one,
// or fails, for N = 1, 2, ... until the save completes. After each, with what a killed process or a loss of
// power leaves, the newest checkpoint that loads is the new or the previous one, nothing else is lost, and
// the next save works and leaves no litter.
#include <iostream>
#include <set>

#include "accelerate/checkpoint/store/draft.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/checkpoint/store/listing.h"
#include "accelerate/checkpoint/store/recovery.h"
#include "accelerate/core/strings.h"
#include "support/fault_file_system.h"
#include "support/memory_files.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

constexpr const char* kFolder = "out/run";

std::string path_of(int64_t number) {
  return path_in(kFolder, checkpoint_name(number));
}

// What a save writes into two files, by checkpoint and by which save it is (several have one name).
std::string content(int64_t number, const std::string& save) {
  return concat("weights ", number, " of save ", save, std::string(100, 'w'));
}

void save(FileSystem& files, int64_t number, const std::string& name, int64_t total_limit) {
  auto draft = CheckpointDraft::create(files, path_of(number));
  CheckpointManifest manifest{.time = concat("2026-01-01T00:00:0", name, "Z"),
                              .iteration = number,
                              .strategy = "test",
                              .extra = concat("{\"save\":\"", name, "\"}"),
                              .files = {}};
  manifest.files.push_back(draft.write_file("model.safetensors", content(number, name)));
  {
    auto other_rank = CheckpointDraft::join(files, draft.path());
    manifest.files.push_back(other_rank.write_file("rank_1/optimizer.bin", content(number, name) + "o"));
  }
  draft.commit(manifest);
  rotate_checkpoints(files, kFolder, total_limit, checkpoint_name(number));
}

// "3/b": checkpoint_3 as written by save b, complete in every byte. Throws if it is anything else.
std::string identity(FileSystem& files, const ListedCheckpoint& checkpoint) {
  const auto found = verify_checkpoint(files, checkpoint.path, VerifyLevel::kFull);
  if (!found.complete()) throw std::runtime_error(concat(checkpoint.name, ": ", found.reason()));
  const std::string text = read_whole_file(files, path_in(checkpoint.path, "model.safetensors"));
  for (const char* name : {"1", "2", "3", "4", "5"}) {
    if (text != content(checkpoint.number, name)) continue;
    const std::string optimizer = read_whole_file(files, path_in(checkpoint.path, "rank_1/optimizer.bin"));
    if (optimizer != text + "o") throw std::runtime_error("files of two saves");
    return concat(checkpoint.number, "/", name);
  }
  throw std::runtime_error("another content");
}

std::vector<std::string> identities(FileSystem& files) {
  std::vector<std::string> out;
  if (!files.info(kFolder)) return out;
  for (const auto& checkpoint : list_checkpoints(files, kFolder).checkpoints)
    out.push_back(identity(files, checkpoint));
  return out;
}

void collect(FileSystem& files, const std::string& path, std::set<std::string>& out) {
  const auto info = files.info(path);
  if (info->kind != FileKind::kDirectory) {
    out.insert(path);
    return;
  }
  for (const std::string& name : files.list(path)) collect(files, path_in(path, name), out);
}

// Every file under the folder is one of a checkpoint that is listed.
void check_no_litter(FileSystem& files) {
  std::set<std::string> expected;
  for (const auto& checkpoint : list_checkpoints(files, kFolder).checkpoints) {
    expected.insert(path_in(checkpoint.path, "manifest.json"));
    for (const auto& file : checkpoint.manifest.files) expected.insert(path_in(checkpoint.path, file.path));
    CHECK(checkpoint.path == path_in(kFolder, checkpoint.name));
  }
  std::set<std::string> found;
  collect(files, kFolder, found);
  CHECK(found == expected);
  CHECK(files.list(kFolder).size() == list_checkpoints(files, kFolder).checkpoints.size());
}

using Identities = std::vector<std::string>;

struct Scenario {
  std::string name;
  std::function<void(MemoryFiles&)> prepare;  // without faults, durable
  std::function<void(FileSystem&)> act;       // with them
  Identities stays;                           // on every outcome
  Identities newest_before;                   // the newest may be one of these ...
  std::string newest_after;                   // ... or this, and is this once `act` has returned
};

std::vector<Scenario> scenarios() {
  const auto three = [](MemoryFiles& files) {
    for (const int64_t number : {1, 2, 3}) save(files, number, "1", 9);
  };
  return {
      {"first save", [](MemoryFiles&) {}, [](FileSystem& files) { save(files, 0, "2", 2); }, {}, {""}, "0/2"},
      {"save with rotation",
       three,
       [](FileSystem& files) { save(files, 4, "2", 3); },
       {"2/1", "3/1"},
       {"3/1"},
       "4/2"},
      {"save over an existing name",
       three,
       [](FileSystem& files) { save(files, 3, "2", 3); },
       {"1/1", "2/1"},
       {"3/1"},
       "3/2"},
      {"save after an interrupted removal",
       [three](MemoryFiles& files) {
         three(files);
         FaultFileSystem dying(files, Fault::kStop, 5);
         CHECK_THROWS_AS(remove_checkpoint(dying, path_of(1)), Stopped);
         files.drop_locks();
       },
       [](FileSystem& files) { save(files, 4, "2", 9); },
       {"2/1", "3/1"},
       {"3/1"},
       "4/2"},
      {"save after a save that died between two renames",
       [three](MemoryFiles& files) {
         three(files);
         files.rename(path_of(3), path_of(3) + ".old-0123456789abcdef");
         files.sync_directory(kFolder);
       },
       [](FileSystem& files) { save(files, 4, "2", 9); },
       {"1/1", "2/1", "3/1"},
       {"3/1"},
       "4/2"},
      {"clean-up alone",
       [three](MemoryFiles& files) {
         three(files);
         // A save of 3 that died between its two renames, and one of 4 that died half way.
         auto draft = CheckpointDraft::create(files, path_of(4));
         draft.write_file("model.safetensors", std::string("half"));
         files.drop_locks();
         files.rename(path_of(3), path_of(3) + ".draft-0123456789abcdef");
         files.rename(path_of(2), path_of(3) + ".old-0123456789abcdef");
         files.sync_directory(kFolder);
         // What is left of `draft` must not tidy up after itself.
         files.rename(draft.path(), path_of(4) + ".draft-00000000000000aa");
       },
       [](FileSystem& files) { recover_folder(files, kFolder); },
       {"1/1"},
       {"3/1"},
       "3/1"},
  };
}

bool contains(const Identities& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

struct Machine {
  MemoryFiles::Options options;
  std::string name;
};

const std::vector<Machine>& machines() {
  static const std::vector<Machine> kAll = {{{.has_exchange = true}, "with exchange"},
                                            {{.has_exchange = false}, "without exchange"}};
  return kAll;
}

// All that must hold after `act` has ended in whatever way.
void check_outcome(MemoryFiles& files, const Scenario& scenario, bool returned) {
  const Identities found = identities(files);
  for (const std::string& one : scenario.stays) {
    INFO("missing " << one << " of " << join(found, ", "));
    CHECK(contains(found, one));
  }
  const std::string newest = found.empty() ? "" : found.back();
  INFO("newest is " << newest);
  CHECK((newest == scenario.newest_after || (!returned && contains(scenario.newest_before, newest))));
  // Resuming finds the same.
  const auto resumed = find_newest_checkpoint(files, kFolder, VerifyLevel::kFull);
  CHECK((resumed ? identity(files, *resumed) : "") == newest);
  for (const std::string& one : scenario.stays) CHECK(contains(identities(files), one));
  save(files, 5, "5", 9);
  const Identities after = identities(files);
  CHECK(after.back() == "5/5");
  if (!newest.empty()) CHECK(contains(after, newest));
  for (const std::string& one : scenario.stays) CHECK(contains(after, one));
  check_no_litter(files);
}

// Runs `act` with a fault at the N-th operation; false once it has returned without one.
bool run_with_fault(const Scenario& scenario, const Machine& machine, Fault fault, int error, int64_t at,
                    PowerLoss loss, unsigned seed) {
  MemoryFiles files(machine.options);
  scenario.prepare(files);
  FaultFileSystem faulty(files, fault, at, error);
  bool returned = false;
  std::string said = "returned";
  try {
    scenario.act(faulty);
    returned = true;
  } catch (const Stopped&) {
    said = "stopped";
  } catch (const CheckpointError& failure) {
    said = failure.what();
  }
  INFO(scenario.name << ", " << machine.name << ", operation " << at << ", fault " << static_cast<int>(fault)
                     << ", loss " << static_cast<int>(loss) << ", seed " << seed << ": " << said);
  if (fault == Fault::kStop || loss != PowerLoss::kNone) files.lose_power(loss, seed);
  check_outcome(files, scenario, returned);
  return faulty.has_struck();
}

}  // namespace

TEST_CASE("killed or without power after the N-th operation", "[store]") {
  for (const Scenario& scenario : scenarios()) {
    for (const Machine& machine : machines()) {
      int64_t runs = 0;
      int64_t last = 0;
      const auto until_it_completes = [&](PowerLoss loss, unsigned seed) {
        for (int64_t at = 1;; ++at) {
          ++runs;
          last = at;
          if (!run_with_fault(scenario, machine, Fault::kStop, EIO, at, loss, seed)) break;
        }
      };
      for (const PowerLoss loss : {PowerLoss::kNone, PowerLoss::kAllUnsynced, PowerLoss::kDataOnly})
        until_it_completes(loss, 0);
      for (unsigned seed = 0; seed < 5; ++seed) until_it_completes(PowerLoss::kRandom, seed);
      std::cout << scenario.name << ", " << machine.name << ": " << last - 1 << " operations, " << runs
                << " runs\n";
      CHECK(last > 5);
    }
  }
}

TEST_CASE("the N-th operation fails, once or from then on", "[store]") {
  for (const Scenario& scenario : scenarios()) {
    for (const Machine& machine : machines()) {
      int64_t runs = 0;
      for (const int error : {EIO, ENOSPC}) {
        for (const Fault fault : {Fault::kFailOnce, Fault::kFailFromThenOn}) {
          for (const PowerLoss loss : {PowerLoss::kNone, PowerLoss::kAllUnsynced, PowerLoss::kRandom}) {
            for (int64_t at = 1;; ++at) {
              ++runs;
              if (!run_with_fault(scenario, machine, fault, error, at, loss, 1)) break;
            }
          }
        }
      }
      std::cout << scenario.name << ", " << machine.name << ": " << runs << " runs\n";
    }
  }
}
