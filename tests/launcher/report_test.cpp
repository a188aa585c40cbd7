// `accel report`, over folders as trackers leave them.
#include <nlohmann/json.hpp>

#include "accelerate/tracking/trackers/event_file.h"
#include "launch_test_support.h"
#include "launcher/chart.h"
#include "launcher/event_reader.h"
#include "launcher/html.h"
#include "test_support.h"

using namespace accelerate::testing;
using namespace accelerate::cli;
using accelerate::concat;

namespace {

namespace fs = std::filesystem;

struct Report {
  std::optional<int> code;
  std::string out;
  std::string err;
  std::string page;
};

Report report_of(const std::string& directory) {
  AccelRun run({"report", directory, "-o", directory + "/page.html"});
  Report out;
  out.code = run.finish();
  out.out = run.out();
  out.err = run.err();
  out.page = read_file(directory + "/page.html");
  return out;
}

void write_run(const std::string& folder, const std::string& name, double started, const std::string& lr,
               const std::string& lines) {
  fs::create_directories(folder);
  nlohmann::json record = {{"project", "p"},        {"status", "finished"}, {"started", started},
                           {"ended", started + 90}, {"world_size", 2},      {"host", "box"}};
  record["configuration"] = {{{"name", "lr"}, {"value", lr}}, {{"name", "layers"}, {"value", "3"}}};
  record["settings"] = {{{"name", "num_processes"}, {"value", "2"}, {"origin", "file a.yaml:3"}}};
  write_file(folder + "/run-" + name + ".json", record.dump());
  write_file(folder + "/metrics-" + name + ".jsonl", lines);
}

}  // namespace

TEST_CASE("a report holds every run's curves, configuration and settings with their origins", "[launcher]") {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += concat(R"({"_step":)", i, R"(,"_time":)", 1764495301 + i, R"(,"loss":)", 2.0 / (i + 1),
                    R"(,"lr":0.1,"memory_bytes":1073741824,"samples_per_second":)", 100 + i, "}\n");
  }
  write_run(dir / "p", "one", 1764495301, "0.1",
            lines + R"({"_step":50,"loss":"NaN"})"
                    "\n"
                    R"({"_step":51,"lo)");
  write_run(dir / "p", "two", 1764499301, "0.01", lines);
  const Report report = report_of(dir.path());
  CHECK(report.code == 0);
  CHECK_THAT(report.out, ContainsSubstring("page.html: 2 runs"));
  const std::string& page = report.page;
  CHECK_THAT(
      page, ContainsSubstring("<!DOCTYPE html>") && ContainsSubstring("p/one") && ContainsSubstring("p/two"));
  CHECK(AccelRun::count_in(page, "<svg ") == 4);
  CHECK(AccelRun::count_in(page, "<desc ") == 4);
  CHECK(AccelRun::count_in(page, "<polyline ") == 8);
  CHECK(page.find("<h3>loss</h3>") < page.find("<h3>lr</h3>"));
  CHECK(page.find("<h3>lr</h3>") < page.find("<h3>samples_per_second</h3>"));
  CHECK(page.find("<h3>samples_per_second</h3>") < page.find("<h3>memory_bytes</h3>"));
  CHECK_THAT(page, ContainsSubstring("file a.yaml:3") && ContainsSubstring("1 GiB") &&
                       ContainsSubstring("1 min 30 s") && ContainsSubstring("2025-11-30 09:35:01 UTC"));
  CHECK_THAT(page,
             ContainsSubstring("<tr class=\"differs\"><th scope=\"row\">lr</th><td>0.1</td><td>0.01</td>"));
  CHECK_THAT(page, ContainsSubstring("<tr><th scope=\"row\">layers</th>"));
  CHECK_THAT(page, ContainsSubstring("not finite") && ContainsSubstring("prefers-color-scheme:dark"));
  for (const char* asset : {"http://", "https://", "<script", "@import", "url("}) {
    INFO(asset);
    CHECK(page.find(asset) == std::string::npos);
  }
}

TEST_CASE("a report escapes whatever it is given", "[launcher]") {
  const TempDir dir;
  const std::string bad = "<script>alert(1)</script>\"'&";
  const std::string line = nlohmann::json({{"_step", 1}, {bad, 1.0}}).dump() + "\n";
  write_run(dir / "a<b>", "x<i>", 1, bad, line);
  const Report report = report_of(dir.path());
  CHECK(report.code == 0);
  CHECK(report.page.find("<script") == std::string::npos);
  CHECK(report.page.find("<i>") == std::string::npos);
  CHECK(report.page.find("<b>") == std::string::npos);
  CHECK_THAT(report.page, ContainsSubstring("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
  CHECK(html_text("a\x01 b\xff \xc3\xa4 \xed\xa0\x80") ==
        "a\xef\xbf\xbd b\xef\xbf\xbd \xc3\xa4 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("CSV tables and event files are runs too", "[launcher]") {
  const TempDir dir;
  fs::create_directories(dir / "csv");
  fs::create_directories(dir / "tb");
  write_file(dir / "csv/metrics-r1.csv",
             "_step,_time,loss,\"a,b\"\n0,1764495301,1.5,2\n1,1764495302,nan,\n2,17");
  std::string events = accelerate::event_record(accelerate::version_event(1));
  for (int64_t step = 0; step < 3; ++step) {
    events += accelerate::event_record(accelerate::scalar_event({1764495301.0, step}, "accuracy", 0.5));
  }
  write_file(dir / "tb/events.out.tfevents.1.box.2.0", events + "torn");
  const Report report = report_of(dir.path());
  CHECK(report.code == 0);
  CHECK_THAT(report.out, ContainsSubstring("2 runs"));
  CHECK_THAT(report.page, ContainsSubstring("csv/r1") && ContainsSubstring("<h3>a,b</h3>") &&
                              ContainsSubstring("<h3>accuracy</h3>"));
}

TEST_CASE("the trackers of one run are one run", "[launcher]") {
  const TempDir dir;
  AccelRun log({"log", dir.path(), "jsonl,csv,tensorboard", "20"}, {}, bin("tracker_script"));
  REQUIRE(log.finish() == 0);
  const Report all = report_of(dir.path());
  CHECK_THAT(all.out, ContainsSubstring("page.html: 1 run\n"));
  CHECK_THAT(all.page, ContainsSubstring("adamw") && ContainsSubstring("command line --mixed_precision"));
  const TempDir other;
  AccelRun events({"log", other.path(), "tensorboard", "20"}, {}, bin("tracker_script"));
  REQUIRE(events.finish() == 0);
  const Report from_events = report_of(other.path());
  CHECK_THAT(from_events.out, ContainsSubstring("page.html: 1 run\n"));
  CHECK_THAT(from_events.page, ContainsSubstring("<h3>loss</h3>") && ContainsSubstring("over 20 values") &&
                                   ContainsSubstring("adamw"));
}

TEST_CASE("a folder without runs is an error in words", "[launcher]") {
  const TempDir dir;
  const Report empty = report_of(dir.path());
  CHECK(empty.code == 2);
  CHECK_THAT(empty.err, ContainsSubstring("there is no run in") && ContainsSubstring("metrics-*.jsonl"));
  CHECK(empty.page.empty());
  AccelRun gone({"report", dir / "gone"});
  CHECK(gone.finish() == 2);
  CHECK_THAT(gone.err(), ContainsSubstring("nothing of that name"));
  write_file(dir / "metrics-x.jsonl", "");
  const Report nothing = report_of(dir.path());
  CHECK(nothing.code == 0);
  CHECK_THAT(nothing.page, ContainsSubstring("No numbers have been logged"));
}

TEST_CASE("event files of others are read as far as they are whole", "[launcher]") {
  // As tests/parity/tensorboard_events_gen.py makes them: Python's own writers.
  const auto golden =
      nlohmann::json::parse(read_file(ACCELERATE_TEST_SOURCE_DIR "/tests/parity/tensorboard_events.json"));
  std::string file;
  for (const char* name : {"version", "scalar", "text", "image", "session_start", "scalar"}) {
    const std::string hex = golden[name];
    for (size_t i = 0; i < hex.size(); i += 2)
      file += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  std::string problem;
  const auto events = read_scalar_events(file, problem);
  REQUIRE(events.size() == 2);
  CHECK(problem.empty());
  CHECK(events[0].tag == "loss");
  CHECK(events[0].value == static_cast<double>(0.1f));
  CHECK(events[0].step == golden["step"]);
  CHECK(events[0].wall_time == golden["wall_time"].get<double>());
  for (size_t length = 0; length < file.size(); ++length) read_scalar_events(file.substr(0, length), problem);
  file[file.size() - 10] ^= 1;
  CHECK(read_scalar_events(file, problem).size() == 1);
  CHECK_THAT(problem, ContainsSubstring("record 5 is damaged"));
}

TEST_CASE("axes have round numbers", "[launcher]") {
  using Numbers = std::vector<double>;
  CHECK(chart_ticks(0, 10, 5, ChartUnit::kPlain) == Numbers{0, 2, 4, 6, 8, 10});
  CHECK(chart_ticks(0, 100, 5, ChartUnit::kBytes) == Numbers{0, 32, 64, 96});
  CHECK(chart_ticks(1, 1, 5, ChartUnit::kPlain) == Numbers{1});
  CHECK(chart_number(1536, ChartUnit::kBytes) == "1.5 KiB");
  CHECK(chart_number(0.0125, ChartUnit::kSeconds) == "12.5 ms");
  CHECK(chart_number(45, ChartUnit::kPercent) == "45 %");
  CHECK(chart_number(3.2e-5, ChartUnit::kPlain) == "3.2e-05");
  CHECK(chart_number(0.0 / 0.0, ChartUnit::kPlain) == "not finite");
}

TEST_CASE("a long line keeps its spikes, and a gap stays a gap", "[launcher]") {
  Chart chart{.id = "c", .title = "loss"};
  ChartLine line{.name = "run"};
  for (int i = 0; i < 100'000; ++i) {
    line.x.push_back(i);
    line.y.push_back(i == 77'777 ? 1000 : 1);
  }
  chart.lines = {line};
  const std::string svg = chart_svg(chart);
  CHECK(svg.size() < 40'000);
  CHECK_THAT(svg, ContainsSubstring(",12.0 "));  // the top of the plot
  chart.lines[0].x = {0, 1, 2, 3, 4};
  chart.lines[0].y = {1, 2, 0.0 / 0.0, 2, 1};
  CHECK(AccelRun::count_in(chart_svg(chart), "<polyline") == 2);
}
