// Trackers that write files, and several at once.
#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "accelerate/core/error.h"
#include "accelerate/tracking/trackers/registry.h"
#include "accelerate/tracking/trackers/tracker_files.h"
#include "accelerate/tracking/trackers/tracker_set.h"
#include "launch_test_support.h"
#include "support/checks.h"
#include "test_support.h"

using namespace accelerate;
using accelerate::test::error_of;
using accelerate::testing::AccelRun;
using accelerate::testing::bin;
using accelerate::testing::eventually;
using accelerate::testing::lines_of;
using accelerate::testing::read_file;
using accelerate::testing::TempDir;

namespace {

namespace fs = std::filesystem;

// What was written to the logger.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> all;
  std::shared_ptr<Logger> logger =
      std::make_shared<Logger>(0, LogLevel::kInfo, [this](std::string_view line) {
        const std::lock_guard lock(mutex);
        all.emplace_back(line);
      });
  size_t count() {
    const std::lock_guard lock(mutex);
    return all.size();
  }
};

TrackerSetOptions options_in(const std::string& directory, std::vector<LogWith> log_with) {
  TrackerSetOptions out{.log_with = std::move(log_with), .project = {.project_dir = directory}};
  out.settings = {{"num_processes", "2", "file a.yaml:3"}};
  return out;
}

// The only file in `folder` whose name begins and ends so.
std::string only_file(const std::string& folder, const std::string& start, const std::string& end) {
  std::vector<std::string> found;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename().string();
    if (name.starts_with(start) && name.ends_with(end)) found.push_back(item.path().string());
  }
  INFO(folder << " " << start << "*" << end);
  REQUIRE(found.size() == 1);
  return found.front();
}

// Notes what it is told.
class NotingTracker : public Tracker {
 public:
  explicit NotingTracker(bool everywhere = false) : everywhere_(everywhere) {}
  std::string name() const override { return "noting"; }
  bool main_process_only() const override { return !everywhere_; }
  void start(const TrackerContext& context) override {
    notes.push_back(concat("start ", context.project, " ", context.rank, "/", context.world_size));
  }
  void store_init_configuration(const TrackedValues& values) override {
    notes.push_back(concat("config ", values.size()));
  }
  void log(const TrackedValues& values, std::optional<int64_t> step) override {
    for (const auto& [name, value] : values) {
      notes.push_back(concat(step ? std::to_string(*step) : "-", " ", name, "=", value.text()));
    }
  }
  void finish(RunStatus status) override {
    notes.push_back(status == RunStatus::kFinished ? "finished" : "failed");
  }
  std::vector<std::string> notes;

 private:
  bool everywhere_;
};

class FailingTracker : public NotingTracker {
 public:
  std::string name() const override { return "failing"; }
  void finish(RunStatus status) override { throw Error({.what = "3 of 5 values are lost"}); }
};

// As a tensor has it.
struct OneNumber {
  template <class T>
  T item() const {
    return static_cast<T>(0.5);
  }
};

}  // namespace

TEST_CASE("values keep what they are") {
  const TrackedValues values = {{"a", 1},           {"b", 2.5f},
                                {"c", true},        {"d", "text"},
                                {"e", OneNumber{}}, {"f", std::numeric_limits<uint64_t>::max()}};
  CHECK(values[0].second.is_integer());
  CHECK(values[1].second.number() == 2.5);
  CHECK(values[2].second.is_bool());
  CHECK(values[3].second.text() == "text");
  CHECK_FALSE(values[3].second.number());
  CHECK(values[4].second.number() == 0.5);
  CHECK(values[5].second.number() == Approx(1.8446744073709552e19));
  CHECK(TrackedValue(0.1).text() == "0.1");
  CHECK(TrackedValue(1e-7).text() == "1e-07");
  CHECK(TrackedValue(NAN).text() == "nan");
  CHECK(without_repeats({{"a", 1}, {"b", 2}, {"a", 3}}) == TrackedValues{{"a", 3}, {"b", 2}});
}

TEST_CASE("JSONL: a line a call, and numbers that JSON does not have") {
  const TempDir dir;
  TrackerSet trackers(options_in(dir.path(), {"jsonl"}));
  trackers.init("mnist", {{"lr", 0.1}, {"name", "a \"b\""}});
  trackers.log({{"loss", 0.25}, {"epoch", 3}, {"ok", true}, {"note", "bad \xff byte"}}, 10);
  trackers.log({{"loss", NAN}, {"up", INFINITY}, {"down", -INFINITY}});
  trackers.finish();
  const auto lines = lines_of(read_file(only_file(dir / "mnist", "metrics-", ".jsonl")));
  REQUIRE(lines.size() == 2);
  const auto first = nlohmann::json::parse(lines[0]);
  CHECK(first["_step"] == 10);
  CHECK(std::abs(first["_time"].get<double>() - wall_time_seconds()) < 60);
  CHECK(first["loss"] == 0.25);
  CHECK(first["epoch"].is_number_integer());
  CHECK(first["ok"] == true);
  CHECK(first["note"] == "bad \xef\xbf\xbd byte");
  const auto second = nlohmann::json::parse(lines[1]);
  CHECK(second["_step"] == 11);
  CHECK(second["loss"] == "NaN");
  CHECK(second["up"] == "Infinity");
  CHECK(second["down"] == "-Infinity");
  const auto record = nlohmann::json::parse(read_file(only_file(dir / "mnist", "run-", ".json")));
  CHECK(record["status"] == "finished");
  CHECK(record["project"] == "mnist");
  CHECK(record["configuration"][1]["value"] == "a \"b\"");
  CHECK(record["settings"][0]["origin"] == "file a.yaml:3");
}

TEST_CASE("CSV: a column that comes late, and fields with commas, quotes and line ends") {
  const TempDir dir;
  TrackerSet trackers(options_in(dir.path(), {"csv"}));
  trackers.init("t");
  trackers.log({{"loss", 1.5}, {"text", "a,\"b\"\nc"}}, 0);
  trackers.log({{"loss", 1.25}}, 1);
  trackers.log({{"accuracy", 0.5}, {"loss", 1}}, 5);
  trackers.log({{"a,b", 2}}, 6);
  trackers.finish();
  const auto rows = csv_rows(read_file(only_file(dir / "t", "metrics-", ".csv")));
  REQUIRE(rows.size() == 5);
  CHECK(rows[0] == std::vector<std::string>{"_step", "_time", "loss", "text", "accuracy", "a,b"});
  for (const auto& row : rows) CHECK(row.size() == 6);
  CHECK(rows[1][3] == "a,\"b\"\nc");
  CHECK(rows[2][2] == "1.25");
  CHECK(rows[2][4].empty());
  CHECK(rows[3][4] == "0.5");
  CHECK(rows[4][5] == "2");
}

TEST_CASE("several trackers, one of your own, and what they are told") {
  const TempDir dir;
  const auto mine = std::make_shared<NotingTracker>();
  TrackerSet trackers(options_in(dir.path(), {"jsonl", "tensorboard", mine, "csv"}));
  trackers.init("p", {{"lr", 0.1}}, {{"tensorboard", {{"run_folders", "true"}}}});
  trackers.log({{"loss", 0.5}}, 1);
  trackers.log({{"loss", 0.25}});
  const std::vector<float> weights = {1, 2, 3};
  trackers.log_histogram("weights", weights, 2);
  trackers.get("noting").log({{"alone", 1}}, 9);
  trackers.finish();
  CHECK(mine->notes == std::vector<std::string>{"start p 0/1", "config 1", "1 loss=0.5", "- loss=0.25",
                                                "9 alone=1", "finished"});
  CHECK(lines_of(read_file(only_file(dir / "p", "metrics-", ".jsonl"))).size() == 2);
  CHECK(lines_of(read_file(only_file(dir / "p", "metrics-", ".csv"))).size() == 3);
  size_t event_files = 0;
  for (const auto& item : fs::recursive_directory_iterator(dir.path())) {
    event_files += item.path().filename().string().starts_with("events.out.tfevents.");
  }
  CHECK(event_files == 1);
}

TEST_CASE("ranks other than the main process have only what wants every rank") {
  const TempDir dir;
  const auto mine = std::make_shared<NotingTracker>(true);
  TrackerSetOptions options = options_in(dir.path(), {"jsonl", "tensorboard", mine});
  options.rank = 1;
  options.world_size = 2;
  TrackerSet trackers(options);
  trackers.init("p", {{"lr", 1}});
  trackers.log({{"loss", 1}}, 1);
  trackers.get("jsonl").log({{"loss", 1}}, 1);
  trackers.finish();
  CHECK(mine->notes == std::vector<std::string>{"start p 1/2", "config 1", "1 loss=1", "finished"});
  CHECK(fs::is_empty(dir.path()));

  options.log_with = {"jsonl"};
  TrackerSet everywhere(options);
  everywhere.init("q", {}, {{"jsonl", {{"main_process_only", "false"}}}});
  everywhere.log({{"loss", 1}}, 1);
  everywhere.finish();
  only_file(dir / "q", "metrics-", ".rank1.jsonl");
}

TEST_CASE("misuse is told in words") {
  const TempDir dir;
  const auto error = [](const auto& action) { return error_of<ConfigError>(action); };
  CHECK_THAT(error([&] { TrackerSet(options_in(dir.path(), {"tensorbord"})); }),
             ContainsSubstring("Did you mean 'tensorboard'?") && ContainsSubstring("jsonl, csv"));
  CHECK_THAT(error([&] { TrackerSet(options_in(dir.path(), {"csv", "csv"})); }), ContainsSubstring("twice"));
  TrackerSet trackers(options_in(dir.path(), {"jsonl"}));
  CHECK_THAT(error([&] { trackers.log({{"a", 1}}); }), ContainsSubstring("init_trackers"));
  CHECK_THAT(error([&] { trackers.init("p", {}, {{"csv", {}}}); }), ContainsSubstring("jsonl"));
  CHECK_THAT(error([&] {
               trackers.init("p", {}, {{"jsonl", {{"flush_sec", "1"}}}});
             }),
             ContainsSubstring("Did you mean 'flush_secs'?"));
  trackers.finish();
  CHECK_THAT(error([&] {
               trackers.init("p", {}, {{"jsonl", {{"flush_secs", "soon"}}}});
             }),
             ContainsSubstring("a number"));
  trackers.finish();
  for (const char* name : {"", "..", "../x", "/tmp", "a/../../b"}) {
    CHECK_THAT(error([&] { trackers.init(name); }), ContainsSubstring("folder"));
  }
  trackers.init("p");
  CHECK_THAT(error([&] { trackers.init("p"); }), ContainsSubstring("end_training"));
  CHECK_THAT(error([&] { trackers.get("csv"); }), ContainsSubstring("jsonl"));
  trackers.finish();
  TrackerSet nowhere(options_in("", {"jsonl"}));
  CHECK_THAT(error([&] { nowhere.init("p"); }), ContainsSubstring("project_dir"));
  TrackerSet none(options_in("", {}));
  CHECK_NOTHROW(none.log({{"a", 1}}));
  CHECK_NOTHROW(none.init("p", {{"a", 1}}));
  CHECK_NOTHROW(none.log({{"a", 1}}));
}

TEST_CASE("\"all\" is what can start with what there is") {
  const TempDir dir;
  TrackerSet trackers(options_in(dir.path(), {"all"}));
  trackers.init("p");
  CHECK_NOTHROW(trackers.get("tensorboard"));
  CHECK_THROWS_AS(trackers.get("mlflow"), ConfigError);
  trackers.finish();
}

TEST_CASE("pictures that no tracker takes are a warning, once") {
  const TempDir dir;
  Lines lines;
  TrackerSetOptions options = options_in(dir.path(), {"csv"});
  options.logger = lines.logger;
  TrackerSet trackers(options);
  trackers.init("p");
  const std::vector<uint8_t> pixels(4);
  trackers.log_image("picture", {pixels, 2, 2, 1});
  trackers.log_image("picture", {pixels, 2, 2, 1});
  REQUIRE(lines.all.size() == 1);
  CHECK_THAT(lines.all[0], ContainsSubstring("tensorboard does"));
}

TEST_CASE("what a tracker lost is thrown after all have been ended") {
  const TempDir dir;
  const auto failing = std::make_shared<FailingTracker>();
  TrackerSet trackers(options_in(dir.path(), {failing, "jsonl"}));
  trackers.init("p");
  trackers.log({{"a", 1}});
  CHECK_THAT(error_of<Error>([&] { trackers.finish(); }), ContainsSubstring("3 of 5 values are lost"));
  CHECK(lines_of(read_file(only_file(dir / "p", "metrics-", ".jsonl"))).size() == 1);
  CHECK_NOTHROW(trackers.finish());
}

TEST_CASE("a run that nobody ended has failed") {
  const TempDir dir;
  const auto mine = std::make_shared<NotingTracker>();
  {
    TrackerSet trackers(options_in(dir.path(), {mine, "jsonl"}));
    trackers.init("p");
    trackers.log({{"a", 1}}, 1);
  }
  CHECK(mine->notes.back() == "failed");
  CHECK(lines_of(read_file(only_file(dir / "p", "metrics-", ".jsonl"))).size() == 1);
  CHECK(nlohmann::json::parse(read_file(only_file(dir / "p", "run-", ".json")))["status"] == "failed");
}

TEST_CASE("records wait no longer than the interval, and never for the disk") {
  const TempDir dir;
  RecordFile file(dir / "a/b/records", {.flush_interval = std::chrono::milliseconds(20)});
  file.append("one\n");
  CHECK(eventually([&] { return read_file(dir / "a/b/records") == "one\n"; }));
  file.append("two\n");
  file.rewrite([](std::string content) { return "zero\n" + content; });
  file.append("three\n");
  file.flush();
  CHECK(read_file(dir / "a/b/records") == "zero\none\ntwo\nthree\n");
  CHECK_THROWS_AS(RecordFile(dir / "a/b/records"), ConfigError);
  file.close();
  file.close();
  CHECK_THROWS_AS(RecordFile("/proc/no/such/folder/file"), ConfigError);
}

TEST_CASE("a file that can't grow keeps whole records, goes on later, and tells what it lost") {
  const TempDir dir;
  Lines lines;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 1000;
  const RecordFileOptions options{
      .flush_interval = std::chrono::milliseconds(5), .max_pending_bytes = 4000, .logger = lines.logger};
  RecordFile later(dir / "later", options);
  RecordFile never(dir / "never", options);
  const std::string record = std::string(99, 'x') + "\n";
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  for (int i = 0; i < 5; ++i) later.append(record);
  later.flush();
  for (int i = 0; i < 20; ++i) later.append(record);
  later.flush();
  for (int i = 0; i < 100; ++i) never.append(record);
  never.flush();
  // Told by then: flush() returns after a failure.
  const std::string told = error_of<Error>([&] { never.close(); });
  const std::string partial = read_file(dir / "later");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(partial.size() == 500);
  CHECK_THAT(told, ContainsSubstring("File too large") && ContainsSubstring("of 100 records are lost"));
  CHECK(lines.count() == 2);
  CHECK_NOTHROW(later.close());
  CHECK(read_file(dir / "later").size() == 2500);
  CHECK(read_file(dir / "never").size() % record.size() == 0);
}

TEST_CASE("logging from several threads loses nothing") {
  const TempDir dir;
  RecordFile file(dir / "records", {.flush_interval = std::chrono::milliseconds(1)});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&file] {
      for (int i = 0; i < 500; ++i) file.append("0123456789\n");
    });
  }
  for (std::thread& thread : threads) thread.join();
  file.close();
  CHECK(read_file(dir / "records").size() == 4 * 500 * 11);
}

TEST_CASE("SIGKILL leaves whole records of everything up to the last flush") {
  const TempDir dir;
  AccelRun run({"log", dir.path(), "jsonl,csv,tensorboard", "200", "wait"}, {}, bin("tracker_script"));
  REQUIRE(run.wait_for("logged"));
  const std::string table = only_file(dir / "script", "metrics-", ".jsonl");
  const std::string csv = only_file(dir / "script", "metrics-", ".csv");
  CHECK(eventually([&] { return lines_of(read_file(table)).size() == 200; }));
  CHECK(eventually([&] { return lines_of(read_file(csv)).size() == 201; }));
  run.signal(SIGKILL);
  CHECK(run.finish() == 128 + SIGKILL);
  for (const std::string& line : lines_of(read_file(table)))
    CHECK(nlohmann::json::parse(line).contains("loss"));
  CHECK(read_file(csv).back() == '\n');
  CHECK(nlohmann::json::parse(read_file(only_file(dir / "script", "run-", ".json")))["status"] == "running");
}
