// Every way through the questions of `accel config`: what it saves can be launched.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "accelerate/config/schema.h"
#include "config/config_test_support.h"
#include "launch_test_support.h"
#include "launcher/config_questions.h"
#include "launcher/config_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::cli;
using namespace accelerate::test;
using accelerate::testing::AccelRun;

namespace {

// Answers by a list of choices; where the list ends, takes the first of the possible answers. Remembers how
// many there were, so that the next list can be the next way.
class WalkingPrompt final : public Prompt {
 public:
  explicit WalkingPrompt(std::vector<size_t>& way) : way_(way) {}

  std::string ask(const std::string& question, const std::string& default_answer,
                  const Check& check) override {
    std::vector<std::string> usable;
    std::map<std::string, std::string> refused;
    for (const std::string& answer : answers_to(question, default_answer)) {
      if (answer.empty()) continue;
      const std::string reason = check(answer);
      if (reason.empty())
        usable.push_back(answer);
      else
        refused[answer] = reason;
    }
    for (const auto& [answer, reason] : refused) {
      INFO(question << " " << answer);
      CHECK(reason.size() > 10);
      CHECK((reason.back() == '.' || reason.back() == '?'));
    }
    INFO(question);
    REQUIRE_FALSE(usable.empty());
    const std::string chosen = usable[next(usable.size())];
    CHECK(check(chosen).empty());
    return chosen;
  }
  std::string choose(const std::string&, const std::vector<Choice>& choices,
                     const std::string& preset) override {
    bool known = false;
    for (const Choice& choice : choices) {
      known = known || choice.value == preset;
      CHECK_FALSE(choice.help.empty());
      CHECK(choice.help.find('\n') == std::string::npos);
    }
    CHECK(known);
    return choices[next(choices.size())].value;
  }
  bool yes_or_no(const std::string& question, bool) override {
    // What has no part in other answers is walked for the first of them only: the ways would multiply.
    const bool apart = question.find("(enable_cpu_affinity)") != std::string::npos ||
                       question.find("(rarely needed)") != std::string::npos;
    const bool first =
        at_ < 2 || std::all_of(way_.begin() + 1, way_.begin() + static_cast<std::ptrdiff_t>(at_),
                               [](size_t choice) { return choice == 0; });
    return (!apart || first) && next(2) == 0;
  }
  void say(const std::string& line) override { CHECK_FALSE(line.empty()); }

  /// The next way after this one; false after the last.
  bool advance() {
    way_.resize(at_);
    while (!way_.empty() && way_.back() + 1 >= counts_[way_.size() - 1]) way_.pop_back();
    if (way_.empty()) return false;
    ++way_.back();
    return true;
  }

 private:
  static std::vector<std::string> answers_to(const std::string& question, const std::string& preset) {
    const auto about = [&](const char* key) {
      return question.find(concat("(", key, ":")) != std::string::npos ||
             question.find(concat("(", key, ")")) != std::string::npos;
    };
    if (about("num_processes")) return {preset, "2", "3", "0", "1000000"};
    if (about("num_machines")) return {preset, "2", "3", "0", "none"};
    if (about("machine_rank")) return {preset, "1", "2", "-1"};
    if (about("mpirun_hostfile")) return {preset, "", "hosts"};
    if (about("main_process_ip")) return {preset, "node-1", "1234", "xx.xx.xx.xx"};
    if (about("main_process_port")) return {preset, "0", "70000"};
    if (about("gpu_ids")) return {preset, "0", "0,1,2", "x"};
    if (about("gradient_accumulation_steps")) return {preset, "4", "0"};
    FAIL("a question that this test does not know: " << question);
    return {};
  }

  size_t next(size_t count) {
    if (at_ == way_.size()) way_.push_back(0);
    counts_.push_back(count);
    return way_[at_++];
  }

  std::vector<size_t>& way_;
  size_t at_ = 0;
  std::vector<size_t> counts_;
};

// What can be saved on a machine: text of the file, and the answers.
std::map<std::string, Config> all_files(const MachineFacts& machine) {
  std::map<std::string, Config> out;
  std::vector<size_t> way;
  for (bool more = true; more;) {
    WalkingPrompt prompt(way);
    const Config config = ask_config(prompt, machine);
    out.emplace(write_yaml(config), config);
    more = prompt.advance();
  }
  return out;
}

// HF Accelerate refuses a file with a key that it does not know.
void check_keys_are_known_to_hf(const std::string& yaml) {
  for (const std::string& line : split(yaml, '\n')) {
    if (line.empty()) continue;
    const std::string key = trim(line.substr(0, line.find(':')));
    const KeyRow* row = line.starts_with(" ") ? find_key(key) : find_row(key);
    INFO(line);
    REQUIRE(row != nullptr);
    CHECK((!row->ours || line == "gradient_accumulation_steps: 4" || line == "scheduler_rule: per_process" ||
           line == "step_scheduler_with_optimizer: false"));
  }
}

}  // namespace

TEST_CASE("whatever the questions can save loads back, validates, and is written again with the same bytes") {
  size_t files = 0;
  std::set<std::string> seen;
  for (const MachineFacts& machine : {cpu_box(1), cpu_box(4), gpu_box(1), gpu_box(4)}) {
    for (const auto& [yaml, config] : all_files(machine)) {
      ++files;
      check_keys_are_known_to_hf(yaml);
      check_comes_back(config, machine, ".yaml");
      check_comes_back(config, machine, ".json");
      seen.insert(yaml);
    }
  }
  INFO("files: " << files);
  CHECK(files > 300);
  const auto some_file_has = [&](const std::string& text) {
    return std::any_of(seen.begin(), seen.end(),
                       [&](const std::string& yaml) { return yaml.find(text) != std::string::npos; });
  };
  for (const char* text :
       {"num_machines: 3", "machine_rank: 2", "rdzv_backend: c10d", "main_process_ip: node-1",
        "main_process_port: 29500", "same_network: true", "debug: true", "num_processes: 3",
        "mixed_precision: bf16", "mixed_precision: fp16", "gpu_ids: '0,1,2'", "distributed_type: MULTI_GPU",
        "gradient_accumulation_steps: 4", "mpirun_hostfile: hosts", "enable_cpu_affinity: true",
        "scheduler_rule: per_process", "step_scheduler_with_optimizer: false"}) {
    INFO(text);
    CHECK(some_file_has(text));
  }
  for (const char* text : {"main_process_ip: ''", "main_process_port: 0", "mixed_precision: fp8", "FSDP"}) {
    INFO(text);
    CHECK_FALSE(some_file_has(text));
  }
}

TEST_CASE("what the questions save on this machine is taken by a dry run", "[launcher]") {
  int runs = 0;
  for (const auto& [yaml, config] : all_files(detect_machine(EnvVars()))) {
    // Each is a process of its own: those that differ in more than what no launch looks at. No machine of
    // the tests has a file of hosts.
    if (config.debug || !config.step_scheduler_with_optimizer || config.scheduler_rule == "per_process" ||
        uses_mpirun(config)) {
      continue;
    }
    const TempFolder folder;
    AccelRun run({"launch", "--dry-run", "--config_file", folder.write("c.yaml", yaml).string(), "true"});
    INFO(yaml);
    CHECK(run.finish() == 0);
    INFO(run.err());
    CHECK_THAT(run.out(), ContainsSubstring(concat(*config.num_processes)));
    ++runs;
  }
  CHECK(runs > 20);
}
