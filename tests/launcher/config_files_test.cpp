// Configuration files of all kinds through the program itself: `accel launch --dry-run --config_file F`.
#include <sys/stat.h>

#include "config/config_test_support.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::test;
using accelerate::testing::AccelRun;
using accelerate::testing::RunOptions;

namespace {

// A machine without devices, whatever the tests run on.
const RunOptions kNoDevices{.environment = {{"CUDA_VISIBLE_DEVICES", "-1"}}};

struct DryRun {
  int code = 0;
  std::string out;
  std::string err;
};

DryRun dry_run(const std::filesystem::path& file, std::vector<std::string> flags = {}) {
  std::vector<std::string> words = {"launch", "--dry-run", "--config_file", file.string()};
  words.insert(words.end(), flags.begin(), flags.end());
  words.emplace_back("true");
  AccelRun run(words, kNoDevices);
  const int code = run.finish().value_or(-1);  // -1: it hangs
  return {code, run.out(), run.err()};
}

// Refused with one message of ours: nothing on standard output, and no word of a parser's or the run time's.
void check_refused(const DryRun& run, const std::vector<std::string>& parts) {
  INFO(run.err);
  CHECK(run.code == 2);
  CHECK(run.out.empty());
  CHECK_THAT(run.err, ContainsSubstring("accel: error: "));
  for (const char* never : {"terminate called", "bad conversion", "std::", "what()"}) {
    CHECK(run.err.find(never) == std::string::npos);
  }
  for (const std::string& part : parts) CHECK_THAT(run.err, ContainsSubstring(part));
}

}  // namespace

TEST_CASE("counts of a file that do not fit are refused with both numbers, before anything is started",
          "[launcher]") {
  const TempFolder folder;
  const std::string cpu = "distributed_type: MULTI_CPU\nnum_processes: ";
  const auto refused = [&](const std::string& text, std::vector<std::string> parts) {
    INFO(text);
    parts.emplace_back("c.yaml:");
    check_refused(dry_run(folder.write("c.yaml", text)), parts);
  };
  refused(cpu + "0\n", {"num_processes", "'0'"});
  refused(cpu + "-1\n", {"num_processes", "'-1'"});
  refused(cpu + "3\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n", {"3 processes", "num_machines 2"});
  refused(cpu + "1\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n", {"1 process", "num_machines 2"});
  refused(cpu + "100000\n", {"100000 processes", "core"});
  refused(cpu + "2\nnum_machines: 2\n", {"main_process_ip", "num_machines 2"});
  refused(cpu + "2\nnum_machines: 2\nmain_process_ip: 10.0.0.1\nmachine_rank: 5\n",
          {"machine_rank: is 5", "num_machines 2"});
  refused("distributed_type: NO\ngpu_ids: 0,1\n", {"gpu_ids: 0,1", "no CUDA device found; use --cpu"});
  refused("distributed_type: MULTI_GPU\nnum_processes: 2\n", {"no CUDA device found; use --cpu"});
  refused("distributed_type: MULTI_GPU\nnum_processes: 1\n", {"no CUDA device found; use --cpu"});
}

TEST_CASE("counts of a file that are odd are warned about, and the job goes on", "[launcher]") {
  const TempFolder folder;
  const DryRun none = dry_run(folder.write("c.yaml", "distributed_type: NO\nnum_processes: 2\n"));
  INFO(none.out << none.err);
  CHECK(none.code == 0);
  CHECK_THAT(none.err, ContainsSubstring("c.yaml:2: num_processes: is 2, but distributed_type is NO"));
  CHECK_THAT(none.out, ContainsSubstring("1 process = 1 machine x 1"));
  const DryRun gpu =
      dry_run(folder.write("c.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\n"), {"--cpu"});
  INFO(gpu.out << gpu.err);
  CHECK(gpu.code == 0);
  CHECK_THAT(gpu.err, ContainsSubstring("num_processes: is 1 with distributed_type MULTI_CPU"));
}

TEST_CASE("files that are no configuration are refused with their name, the line and what to do",
          "[launcher]") {
  const TempFolder folder;
  const std::string good = "distributed_type: MULTI_CPU\nnum_processes: 2\n";
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts) {
    const auto file = folder.write("bad file.yaml", text);
    check_refused(dry_run(file), parts);
  };
  refused("", {"bad file.yaml' is empty", "accel config"});
  refused("# nothing\n", {"holds no keys", "accel config"});
  refused(good + "---\n" + good, {"bad file.yaml:3: a second document"});
  refused("distributed_type: FSDP\nfsdp_config:\n\tfsdp_version: 2\n", {"bad file.yaml:3: a tab", "sed -i"});
  refused(std::string(1 << 20, 'x'), {"is larger than", "Is this the right file?"});
  refused(std::string(200'000, '\xfe'), {"bad file.yaml:1"});
  refused(std::string("distributed_type: NO\n\0\n", 23), {"bad file.yaml:2: not a text file"});
  refused(std::string("\xff\xfe"
                      "d\0",
                      4),
          {"UTF-16", "Save it as UTF-8"});
  refused("gpu_ids: *nowhere\n", {"bad file.yaml:1", "anchor"});
  refused(std::string(100'000, '['), {"bad file.yaml:1"});
  refused("distributed_type: MULTI_CPU\nnum_processes: 99999999999999999999999\n",
          {"bad file.yaml:2: num_processes"});
  check_refused(dry_run(folder.path()), {"is a directory", "Name the file"});
  check_refused(dry_run(folder.path() / "none.yaml"), {"none.yaml does not exist", "accel config"});
  check_refused(dry_run("/dev/zero"), {"is larger than"});
  std::filesystem::create_symlink("b.yaml", folder.path() / "a.yaml");
  std::filesystem::create_symlink("a.yaml", folder.path() / "b.yaml");
  check_refused(dry_run(folder.path() / "a.yaml"), {"symbolic links"});
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  check_refused(dry_run(folder.path() / "pipe"), {"pipe is empty"});
}

TEST_CASE("marks and anchors that YAML allows do not disturb", "[launcher]") {
  const TempFolder folder;
  for (const std::string text :
       {"\xef\xbb\xbf"
        "distributed_type: MULTI_CPU\nnum_processes: 2\n",
        "distributed_type: MULTI_CPU\r\nnum_processes: 2\r\n",
        "---\ndistributed_type: MULTI_CPU\nnum_processes: 2\n...\n",
        "distributed_type: MULTI_CPU\nnum_processes: &n 2\nnum_machines: 1\ngradient_accumulation_steps: "
        "*n\n",
        "%YAML 1.1\n---\n? distributed_type\n: MULTI_CPU\nnum_processes:\t2\t# two\n"}) {
    const DryRun run = dry_run(folder.write("c.yaml", text));
    INFO(text << run.err);
    CHECK(run.code == 0);
    CHECK_THAT(run.out, ContainsSubstring("2 processes = 1 machine x 2"));
  }
}

TEST_CASE("real configuration files are answered by a dry run: started, or refused with file and reason",
          "[launcher]") {
  const std::filesystem::path folder = std::string(ACCELERATE_TEST_SOURCE_DIR) + "/../shared/cases/configs";
  if (!std::filesystem::exists(folder / "expected.tsv")) {
    WARN("no folder of real files at " << folder << ": nothing was checked here");
    SUCCEED();
    return;
  }
  std::ifstream in(folder / "expected.tsv");
  std::string line;
  std::getline(in, line);
  int started = 0;
  int refused = 0;
  while (std::getline(in, line)) {
    auto row = split(line, '\t');
    row.resize(6);
    const std::string& file = row[0];
    const bool data_parallel = row[1] == "MULTI_GPU" || row[1] == "MULTI_CPU" || row[1] == "NO";
    // On the CPU where the type allows.
    const DryRun run = dry_run(
        folder / file, data_parallel ? std::vector<std::string>{"--cpu"} : std::vector<std::string>{});
    INFO(file << ", expected verdict " << row[5]);
    if (run.code == 0) {
      ++started;
      CHECK(data_parallel);
      CHECK(trim(row[5]) != "err");
      CHECK(row[4] != "fp8");
      CHECK_THAT(run.out, ContainsSubstring(concat("num_processes: ", row[2])));
    } else {
      ++refused;
      check_refused(run, {file});
    }
  }
  WARN("real configuration files: " << started << " started, " << refused << " refused");
  CHECK(started > 5);
  CHECK(started + refused >= 51);
}
