// Traces are what trace viewers read, and hold what Python's profiler would (tests/parity/tracking_gen.py).
#include "accelerate/tracking/profiler.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/jit.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>

#include "accelerate/core/file_system.h"
#include "tracking_test_support.h"

using namespace accelerate;
using namespace accelerate::test;
using nlohmann::json;

namespace {

// A trace by the rules of the format, "Trace Event Format" (Google, 2016): what every event needs.
class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : document_(json::parse(read_file(path))) {
    std::map<json, int> flows;
    for (const json& event : document_.at("traceEvents")) {
      const std::string phase = event.at("ph");
      require(event.at("ts").is_number(), "ts");
      require(event.contains("pid") && event.contains("tid"), "pid and tid");
      if (phase == "X") {
        require(event.at("dur").is_number() && event.at("dur") >= 0, "dur");
        require(event.at("name").is_string(), "name");
        complete_.push_back(event);
      } else if (phase == "s" || phase == "f") {
        flows[event.at("id")] += phase == "s" ? 1 : -1;
      } else if (phase == "i") {
        require(event.at("s").is_string(), "an instant's scope");
      } else {
        require(phase == "M" && event.at("args").is_object(), "an unknown phase: " + phase);
      }
    }
    for (const auto& [id, open] : flows) require(open == 0, "an arrow without an end: " + id.dump());
  }

  const json& document() const { return document_; }
  std::vector<json> named(const std::string& name) const {
    std::vector<json> out;
    for (const json& event : complete_) {
      if (event.at("name") == name) out.push_back(event);
    }
    return out;
  }
  bool has(const std::string& name) const { return !named(name).empty(); }
  json one(const std::string& name) const {
    const std::vector<json> all = named(name);
    require(all.size() == 1, concat(all.size(), " events named ", name));
    return all[0];
  }

 private:
  json document_;
  std::vector<json> complete_;
};

double begin_of(const json& event) {
  return event.at("ts").get<double>();
}
double end_of(const json& event) {
  return begin_of(event) + event.at("dur").get<double>();
}
// On the same thread and within its time; ts and dur are rounded to nanoseconds.
bool within(const json& inner, const json& outer) {
  constexpr double kRounding = 0.002;
  return inner.at("tid") == outer.at("tid") && begin_of(inner) >= begin_of(outer) - kRounding &&
         end_of(inner) <= end_of(outer) + kRounding;
}

torch::nn::Sequential small_model() {
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
                              torch::nn::Linear(32, 4));
  return model;
}

// The model of tracking_gen.py, in the operators that both languages have: modules are put together in Python
// from other ones.
struct Operators {
  at::Tensor w1 = torch::randn({32, 16}).requires_grad_();
  at::Tensor b1 = torch::randn({32}).requires_grad_();
  at::Tensor w2 = torch::randn({4, 32}).requires_grad_();
  at::Tensor b2 = torch::randn({4}).requires_grad_();
  at::Tensor x = torch::randn({8, 16});
  at::Tensor y = torch::randint(4, {8});
  at::Tensor one = torch::ones({});

  void pass() {
    auto hidden = torch::relu(torch::addmm(b1, x, w1.t()));
    hidden = torch::layer_norm(hidden, {32});
    torch::cross_entropy_loss(torch::addmm(b2, hidden, w2.t()), y).backward(one);
  }
};

void pass(torch::nn::Sequential& model) {
  static const at::Tensor x = torch::randn({8, 16});
  static const at::Tensor y = torch::randint(4, {8});
  torch::nn::functional::cross_entropy(model->forward(x), y).backward();
}

std::vector<std::string> files_in(const std::string& directory) {
  return system_files().list(directory);
}

OperatorTime row(const std::vector<OperatorTime>& rows, const std::string& name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const OperatorTime& r) { return r.name == name; });
  return found == rows.end() ? OperatorTime{} : *found;
}

// As alone(), with what is logged in `lines`.
AcceleratorOptions logging(std::vector<std::string>& lines) {
  AcceleratorOptions options = alone();
  options.logger = std::make_shared<Logger>(0, LogLevel::kInfo,
                                            [&lines](std::string_view line) { lines.emplace_back(line); });
  return options;
}

}  // namespace

TEST_CASE("operators, their counts and flops are those of Python's profiler") {
  Accelerator accelerator(alone());
  Operators operators;
  auto profiler = accelerator.profile({.with_flops = true});
  for (int i = 0; i < 2; ++i) operators.pass();
  profiler.stop();
  std::map<std::string, std::pair<int64_t, int64_t>> got;
  for (const OperatorTime& one : profiler.key_averages()) {
    if (one.name != "ProfilerStep*") got[one.name] = {one.count, one.flops};
    CHECK(one.self_cpu_time_ns >= 0);
    CHECK(one.cpu_time_total_ns >= one.self_cpu_time_ns);
  }
  std::map<std::string, std::pair<int64_t, int64_t>> want;
  const json file = golden("tracking.json");
  for (const json& one : file.at("operators")) {
    want[one.at("name")] = {one.at("count"), one.at("flops")};
  }
  CHECK(want.size() > 40);
  CHECK(got == want);
}

TEST_CASE("sums over spans equal Python's key_averages") {
  int compared = 0;
  const json file = golden("tracking.json");
  for (const json& one : file.at("span_sums")) {
    std::vector<ProfiledSpan> spans;
    for (const json& span : one.at("spans")) {
      spans.push_back({.name = span.at("name"),
                       .thread = span.at("thread"),
                       .start_ns = 1000 * span.at("start_us").get<int64_t>(),
                       .end_ns = 1000 * span.at("end_us").get<int64_t>()});
    }
    const std::vector<OperatorTime> rows = add_up_spans(spans);
    CHECK(rows.size() == one.at("rows").size());
    ++compared;
    for (const json& want : one.at("rows")) {
      INFO(want);
      const OperatorTime got = row(rows, want.at("name"));
      CHECK(got.count == want.at("count"));
      CHECK(got.self_cpu_time_ns == 1000 * want.at("self_us").get<int64_t>());
      CHECK(got.cpu_time_total_ns == 1000 * want.at("total_us").get<int64_t>());
    }
    for (size_t i = 1; i < rows.size(); ++i) {
      CHECK(rows[i - 1].self_cpu_time_ns >= rows[i].self_cpu_time_ns);
    }
  }
  CHECK(compared == 5);
  CHECK(add_up_spans({}).empty());
}

TEST_CASE("memory belongs to the innermost call around it") {
  const std::vector<ProfiledSpan> spans = {
      {.name = "outer", .thread = 1, .start_ns = 0, .end_ns = 100},
      {.name = "inner", .thread = 1, .start_ns = 10, .end_ns = 20},
      {.name = "[memory]", .thread = 1, .start_ns = 12, .end_ns = 12, .memory_bytes = 64, .is_memory = true},
      {.name = "[memory]", .thread = 1, .start_ns = 50, .end_ns = 50, .memory_bytes = -16, .is_memory = true},
      {.name = "[memory]", .thread = 2, .start_ns = 13, .end_ns = 13, .memory_bytes = 7, .is_memory = true}};
  const std::vector<OperatorTime> rows = add_up_spans(spans);
  CHECK(row(rows, "inner").self_cpu_memory_bytes == 64);
  CHECK(row(rows, "outer").self_cpu_memory_bytes == -16);
  CHECK(row(rows, "[memory]").self_cpu_memory_bytes == 7);
  const std::string table = format_operator_times(rows, 2);
  CHECK_THAT(table, ContainsSubstring("Self CPU Mem"));
  CHECK_THAT(table, ContainsSubstring("(1 more)"));
  CHECK_THAT(table, ContainsSubstring("Self CPU time total: 0.100 us"));
}

TEST_CASE("schedules are torch's") {
  const std::map<std::string, ProfilerAction> actions = {{"NONE", ProfilerAction::kNone},
                                                         {"WARMUP", ProfilerAction::kWarmup},
                                                         {"RECORD", ProfilerAction::kRecord},
                                                         {"RECORD_AND_SAVE", ProfilerAction::kRecordAndSave}};
  int compared = 0;
  const json file = golden("tracking.json");
  for (const json& one : file.at("schedules")) {
    const ProfileSchedule schedule{.wait = one.at("wait"),
                                   .warmup = one.at("warmup"),
                                   .active = one.at("active"),
                                   .repeat = one.value("repeat", 0),
                                   .skip_first = one.value("skip_first", 0),
                                   .skip_first_wait = one.value("skip_first_wait", 0) != 0};
    int64_t step = 0;
    for (const json& action : one.at("actions")) {
      INFO(one << " step " << step);
      CHECK(profiler_action(schedule, step++) == actions.at(action));
      ++compared;
    }
  }
  CHECK(compared == 6 * 25);
  Accelerator accelerator(alone());
  for (const ProfileSchedule& wrong :
       {ProfileSchedule{.active = 0}, ProfileSchedule{.wait = -1}, ProfileSchedule{.repeat = -2}}) {
    CHECK_THROWS_AS(accelerator.profile({.schedule_option = wrong}), ConfigError);
  }
}

TEST_CASE("a trace holds operators within ranges within steps, in the format of trace viewers") {
  const TempDir dir;
  Accelerator accelerator(alone());
  auto model = small_model();
  int ready = 0;
  auto profiler = accelerator.profile(
      {.schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 1},
       .on_trace_ready =
           [&](Profiler& self) {
             ++ready;
             CHECK(self.num_traces() == 1);
             CHECK(row(self.key_averages(), "ProfilerStep*").count == 2);
           },
       .record_shapes = true,
       .profile_memory = true,
       .output_trace_dir = dir / "made/here"});
  for (int step = 0; step < 6; ++step) {
    CHECK(profiler.step_num() == step);
    CHECK(profiler.recording() == (step == 2 || step == 3));
    {
      const ProfileScope range("train");
      pass(model);
    }
    profiler.step();
    CHECK(ready == (step >= 3 ? 1 : 0));
  }
  profiler.finish();
  CHECK(ready == 1);
  CHECK(files_in(dir / "made/here") == std::vector<std::string>{"profile_0.json"});

  const TraceFile trace(dir / "made/here/profile_0.json");
  CHECK(trace.document().at("traceName") == dir / "made/here/profile_0.json");
  CHECK(trace.document().at("distributedInfo").at("rank") == 0);
  CHECK(trace.document().at("distributedInfo").at("world_size") == 1);
  for (const int step : {0, 1, 4, 5}) CHECK_FALSE(trace.has(concat("ProfilerStep#", step)));
  const json steps[] = {trace.one("ProfilerStep#2"), trace.one("ProfilerStep#3")};
  CHECK(end_of(steps[0]) <= begin_of(steps[1]));
  const auto ranges = trace.named("train");
  REQUIRE(ranges.size() == 2);
  const auto products = trace.named("aten::addmm");
  REQUIRE(products.size() == 4);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(within(ranges[i], steps[i]));
    CHECK(within(products[2 * i], ranges[i]));
    CHECK(within(products[2 * i + 1], ranges[i]));
    CHECK(end_of(products[2 * i]) <= begin_of(products[2 * i + 1]));
  }
  // bias, input, weight
  CHECK(products[0].at("args").at("Input Dims") == json::parse("[[32], [8, 16], [16, 32], [], []]"));
  CHECK(trace.named("AddmmBackward0").size() == 4);
  // Backward is tied to forward by arrows.
  int arrows = 0;
  int64_t taken_bytes = 0;
  for (const json& event : trace.document().at("traceEvents")) {
    arrows += event.at("ph") == "s";
    if (event.value("name", "") == "[memory]")
      taken_bytes += std::max<int64_t>(0, event.at("args").at("Bytes"));
  }
  CHECK(arrows > 0);
  CHECK(taken_bytes > 0);
  // The row of a name is the sum of its events.
  double addmm_us = 0;
  for (const json& event : products) addmm_us += event.at("dur").get<double>();
  CHECK(static_cast<double>(row(profiler.key_averages(), "aten::addmm").cpu_time_total_ns) ==
        Approx(1000 * addmm_us).margin(8));
  CHECK_THAT(profiler.table(), ContainsSubstring("aten::addmm"));
  CHECK_THAT(profiler.table(), ContainsSubstring("# of Calls"));
}

TEST_CASE("every cycle is a trace, and the file is that of the last one") {
  const TempDir dir;
  Accelerator accelerator(alone());
  std::vector<std::string> copies;
  {
    auto profiler = accelerator.profile({.schedule_option = ProfileSchedule{.wait = 1, .active = 1},
                                         .on_trace_ready =
                                             [&](Profiler& self) {
                                               copies.push_back(dir / concat("copy", copies.size(), ".json"));
                                               self.export_chrome_trace(copies.back());
                                             },
                                         .output_trace_dir = dir.path()});
    for (int step = 0; step < 6; ++step) {
      torch::ones({3}).relu();
      profiler.step();
    }
  }
  REQUIRE(copies.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(TraceFile(copies[i]).has(concat("ProfilerStep#", 2 * i + 1)));
    CHECK(TraceFile(copies[i]).named("aten::relu").size() == 1);
  }
  CHECK(TraceFile(dir / "profile_0.json").has("ProfilerStep#5"));
  CHECK(files_in(dir.path()).size() == 4);
}

TEST_CASE("a cycle that is cut short is a trace; one that never began is a warning") {
  std::vector<std::string> lines;
  const TempDir dir;
  Accelerator accelerator(logging(lines));
  {
    auto profiler = accelerator.profile(
        {.schedule_option = ProfileSchedule{.active = 10}, .output_trace_dir = dir.path()});
    torch::ones({3}).add(1);
    profiler.step();
    torch::ones({3}).mul(2);
  }
  CHECK(TraceFile(dir / "profile_0.json").has("aten::mul"));
  CHECK(TraceFile(dir / "profile_0.json").has("ProfilerStep#1"));
  CHECK(lines.empty());
  {
    auto profiler = accelerator.profile(
        {.schedule_option = ProfileSchedule{.wait = 5}, .output_trace_dir = dir / "none"});
    for (int step = 0; step < 4; ++step) profiler.step();
    CHECK_THROWS_WITH(profiler.table(), ContainsSubstring("no complete trace"));
  }
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], ContainsSubstring("nothing was recorded, since the 4 steps were over"));
  CHECK(files_in(dir / "none").empty());
  // Left in the middle of a warm-up: nothing of it is in the next profile.
  {
    auto profiler = accelerator.profile({.schedule_option = ProfileSchedule{.warmup = 5}});
    profiler.step();
  }
  auto profiler = accelerator.profile();
  torch::ones({3}).add(1);
  profiler.stop();
  CHECK(row(profiler.key_averages(), "aten::add").count == 1);
}

TEST_CASE("names of ranges may hold anything") {
  const TempDir dir;
  Accelerator accelerator(alone());
  auto profiler = accelerator.profile({.output_trace_dir = dir.path()});
  for (const char* name :
       {"a \"quoted\" name", "ends with a quote\"", "\", \"pid\": 7", "\xC3\xA4\xE2\x82\xAC",
        "bad \xFF utf-8", "tab\there", "line\nend", "back\\slash", ""}) {
    const ProfileScope range(name);
    torch::ones({1});
  }
  {
    RECORD_USER_SCOPE("torch's own");
    const ProfileScope outer("twice");
    const ProfileScope inner("twice");
  }
  profiler.stop();
  const TraceFile trace(dir / "profile_0.json");
  CHECK(trace.has("a \"quoted\" name"));
  CHECK(trace.has("ends with a quote\""));
  CHECK(trace.has("\xC3\xA4\xE2\x82\xAC"));
  CHECK(trace.has("bad \xEF\xBF\xBD utf-8"));
  CHECK(trace.has("tab\there"));
  CHECK(trace.has("line\nend"));
  CHECK(trace.has("back\\slash"));
  CHECK(trace.has("torch's own"));
  CHECK(trace.named("twice").size() == 2);
  CHECK(trace.named("aten::ones").size() == 9);
}

TEST_CASE("one profiler at a time, and the next one after it has stopped") {
  Accelerator accelerator(alone());
  std::optional<Profiler> first;
  first.emplace(accelerator);
  CHECK_THROWS_WITH(accelerator.profile(), ContainsSubstring("a profiler is running already"));
  // Not from another thread either.
  CHECK_THAT(std::async(std::launch::async,
                        [&] { return error_of<Error>([&] { auto other = accelerator.profile(); }); })
                 .get(),
             ContainsSubstring("one at a time"));
  torch::ones({3}).add(1);
  first->stop();
  {
    auto second = accelerator.profile();
    torch::ones({3}).mul(2);
    second.stop();
    CHECK(row(second.key_averages(), "aten::mul").count == 1);
    CHECK(row(second.key_averages(), "aten::add").count == 0);
  }
  // The first one's trace is still its own.
  CHECK(row(first->key_averages(), "aten::add").count == 1);
  first->stop();
  first->step();
  first.reset();

  // One that was started past us.
  namespace torch_profiler = torch::autograd::profiler;
  const torch_profiler::ProfilerConfig config(torch_profiler::ProfilerState::KINETO);
  torch_profiler::prepareProfiler(config, {torch_profiler::ActivityType::CPU});
  torch_profiler::enableProfiler(config, {torch_profiler::ActivityType::CPU});
  CHECK_THROWS_WITH(accelerator.profile(), ContainsSubstring("a profiler is running already"));
  torch_profiler::disableProfiler();
  accelerator.profile().stop();
}

TEST_CASE("an exception leaves the profiler off and the trace written") {
  const TempDir dir;
  Accelerator accelerator(alone());
  auto model = small_model();
  const auto train = [&] {
    auto profiler = accelerator.profile({.output_trace_dir = dir.path()});
    const ProfileScope range("train");
    pass(model);
    torch::ones({2, 3}).mm(torch::ones({2, 3}));  // throws
  };
  CHECK_THROWS_AS(train(), c10::Error);
  CHECK_FALSE(torch::autograd::profiler::profilerEnabled());
  const TraceFile trace(dir / "profile_0.json");
  CHECK(trace.named("aten::addmm").size() == 2);
  CHECK(within(trace.named("aten::addmm")[0], trace.one("train")));
  // In on_trace_ready: thrown by stop(), logged by the destructor.
  std::vector<std::string> lines;
  Accelerator other(logging(lines));
  const ProfileOptions angry{.on_trace_ready = [](Profiler&) { throw std::runtime_error("I am angry"); }};
  {
    auto profiler = other.profile(angry);
    CHECK_THROWS_WITH(profiler.stop(), ContainsSubstring("I am angry"));
  }
  CHECK(lines.empty());
  { auto profiler = other.profile(angry); }
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], ContainsSubstring("I am angry"));
  CHECK_FALSE(torch::autograd::profiler::profilerEnabled());
}

TEST_CASE("a path that can't be written is an error that names it") {
  std::vector<std::string> lines;
  const TempDir dir;
  testing::write_file(dir / "file", "text");
  Accelerator accelerator(logging(lines));
  // At the start, before anything is recorded.
  CHECK_THROWS_WITH(accelerator.profile({.output_trace_dir = dir / "file/traces"}),
                    ContainsSubstring(dir / "file"));
  CHECK_THROWS_AS(accelerator.profile({.output_trace_dir = dir / "file"}), CheckpointError);
  // At the end, when the folder has gone.
  {
    auto profiler = accelerator.profile({.output_trace_dir = dir / "gone"});
    std::filesystem::remove_all(dir / "gone");
    CHECK_THROWS_WITH(profiler.finish(), ContainsSubstring(dir / "gone"));
    CHECK_THROWS_WITH(profiler.export_chrome_trace(dir / "nowhere/trace.json"),
                      ContainsSubstring(dir / "nowhere"));
    // What was recorded is not lost.
    profiler.export_chrome_trace(dir / "trace.json");
    CHECK(TraceFile(dir / "trace.json").has("ProfilerStep#0"));
    profiler.export_chrome_trace(dir / "again.json");
    CHECK(TraceFile(dir / "again.json").has("ProfilerStep#0"));
  }
  CHECK(lines.empty());
  {
    auto profiler = accelerator.profile({.output_trace_dir = dir / "gone"});
    std::filesystem::remove_all(dir / "gone");
  }
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], ContainsSubstring(dir / "gone"));
}

TEST_CASE("activities that can't be recorded are errors") {
  Accelerator accelerator(alone());
  CHECK_THROWS_WITH(accelerator.profile({.activities = {"cpu", "gpu"}}), ContainsSubstring("'gpu'"));
  if (!at::hasCUDA()) {
    CHECK_THROWS_WITH(accelerator.profile({.activities = {"cuda"}}), ContainsSubstring("'cuda'"));
  }
  accelerator.profile({.activities = {"CPU"}}).stop();
}

TEST_CASE("other threads are recorded where asked for") {
  Accelerator accelerator(alone());
  for (const bool all_threads : {false, true}) {
    auto go = std::promise<void>();
    auto begun = go.get_future();
    // Older than the profiler, as a loader's worker may be.
    std::thread worker([&begun] {
      begun.wait();
      const ProfileScope range("worker");
      torch::ones({3}).mul(2);
    });
    auto profiler = accelerator.profile({.all_threads = all_threads});
    go.set_value();
    worker.join();
    profiler.stop();
    CHECK(row(profiler.key_averages(), "worker").count == (all_threads ? 1 : 0));
    CHECK(row(profiler.key_averages(), "aten::mul").count == (all_threads ? 1 : 0));
  }
}

TEST_CASE("a profiler belongs to its thread") {
  Accelerator accelerator(alone());
  auto profiler = accelerator.profile();
  for (void (Profiler::*method)() : {&Profiler::step, &Profiler::stop}) {
    CHECK_THAT(
        std::async(std::launch::async, [&] { return error_of<Error>([&] { (profiler.*method)(); }); }).get(),
        ContainsSubstring("another thread"));
  }
  torch::ones({3}).add(1);
  profiler.stop();
  CHECK(row(profiler.key_averages(), "aten::add").count == 1);
}

TEST_CASE("stacks and modules are those of TorchScript code") {
  const TempDir dir;
  Accelerator accelerator(alone());
  const auto script = torch::jit::compile("def twice(x):\n    return x + x\n");
  const auto run = [&] { script->run_method("twice", torch::ones({3})); };
  run();
  auto profiler =
      accelerator.profile({.with_stack = true, .with_modules = true, .output_trace_dir = dir.path()});
  run();
  torch::ones({3}).relu();
  profiler.stop();
  const TraceFile trace(dir / "profile_0.json");
  CHECK_THAT(trace.one("aten::add").at("args").dump(), ContainsSubstring("twice"));
  CHECK_THAT(trace.one("aten::relu").at("args").dump(), !ContainsSubstring("stack"));
}

TEST_CASE("each rank writes a file of its own, with its collectives in it") {
  const TempDir dir;
  std::atomic<int> checked = 0;
  run_ranks(2, [&](Accelerator& accelerator) {
    // One after the other, since these ranks share a process.
    for (int turn = 0; turn < 2; ++turn) {
      const bool mine = accelerator.process_index() == turn;
      std::optional<Profiler> profiler;
      if (mine) profiler.emplace(accelerator, ProfileOptions{.output_trace_dir = dir.path()});
      accelerator.reduce(torch::ones({3}));
      accelerator.gather(torch::ones({3}));
      accelerator.broadcast(torch::ones({3}));
      accelerator.wait_for_everyone();
      if (mine) profiler->stop();
      accelerator.wait_for_everyone();  // the other one's turn
      if (!mine) continue;
      const TraceFile trace(concat(dir.path(), "/profile_", turn, ".json"));
      for (const char* name : {"all_reduce", "all_gather", "broadcast", "barrier"}) {
        require(trace.named(concat("accelerate::", name)).size() == 1, name);
      }
      require(trace.document().at("distributedInfo").at("rank") == turn, "rank");
      require(trace.document().at("distributedInfo").at("world_size") == 2, "world size");
      ++checked;
    }
  });
  CHECK(checked == 2);
}

TEST_CASE("when one rank could not write, finish throws on all") {
  const TempDir dir;
  std::mutex mutex;
  std::map<int, std::string> errors;
  run_ranks(2, [&](Accelerator& accelerator) {
    const int rank = accelerator.process_index();
    std::optional<Profiler> profiler;
    const std::string own = dir / concat("rank", rank);
    const auto profile = [&] {
      profiler.emplace(accelerator, ProfileOptions{.output_trace_dir = own});
      if (rank == 1) std::filesystem::remove_all(own);
      if (rank == 0) profiler->stop();  // the other one's turn
    };
    if (rank == 0) profile();
    accelerator.wait_for_everyone();
    if (rank == 1) profile();
    const std::string error = error_of<CheckpointError>([&] { profiler->finish(); });
    const std::lock_guard lock(mutex);
    errors[rank] = error;
  });
  CHECK_THAT(errors[0], ContainsSubstring("1 of 2 ranks"));
  CHECK_THAT(errors[1], ContainsSubstring(dir / "rank1"));
}

TEST_CASE("processes each write their trace, the first one reads all, and nothing is printed meanwhile") {
  for (const int world : {1, 2}) {
    const TempDir dir;
    testing::AccelRun run({"launch", "--cpu", "--num_processes", std::to_string(world),
                           testing::bin("profile_torch"), dir / "traces"},
                          {.environment = {{"ACCELERATE_LOG_LEVEL", "warning"}}});
    const auto code = run.finish(std::chrono::seconds(120));
    INFO(run.all());
    CHECK(code == 0);
    CHECK_THAT(run.out(), ContainsSubstring(concat(world, " traces are complete")));
    CHECK_THAT(run.out(), ContainsSubstring("aten::addmm"));
    // Kineto's own messages.
    CHECK_THAT(run.err(), !ContainsSubstring("STAGE:") && !ContainsSubstring("DeviceProperties"));
    CHECK(files_in(dir / "traces").size() == static_cast<size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      const TraceFile trace(dir / concat("traces/profile_", rank, ".json"));
      CHECK(trace.document().at("distributedInfo").at("rank") == rank);
      // Two recorded steps.
      CHECK(trace.has("ProfilerStep#2"));
      CHECK(trace.has("ProfilerStep#3"));
      CHECK(trace.named("train").size() == 2);
      CHECK(trace.has("c10d::allreduce_") == (world > 1));
      CHECK(trace.named("accelerate::all_gather").size() == (world > 1 ? 2U : 0U));
      for (const auto& gather : trace.named("accelerate::all_gather")) {
        const auto steps = {trace.one("ProfilerStep#2"), trace.one("ProfilerStep#3")};
        CHECK(
            std::any_of(steps.begin(), steps.end(), [&](const auto& step) { return within(gather, step); }));
      }
    }
  }
}
