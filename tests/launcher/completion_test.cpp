// `accel completion`, tried in a real bash.
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

// What bash offers for the last of `words`.
std::vector<std::string> completions(const std::vector<std::string>& words, const std::string& folder = {}) {
  std::string line;
  for (const std::string& word : words) line += concat(" ", accelerate::shell_quote(word));
  const std::string script =
      concat("eval \"$('", bin("accel"),
             "' completion bash)\"; complete -p accel >/dev/null || exit 9; COMP_WORDS=(", line,
             "); COMP_CWORD=", words.size() - 1, "; _accel; printf '%s\\n' \"${COMPREPLY[@]}\"");
  AccelRun run({"--norc", "--noprofile", "-c", script}, {.working_directory = folder}, "/bin/bash");
  CHECK(run.finish() == 0);
  CHECK(run.err().empty());
  std::vector<std::string> out;
  for (const std::string& offered : lines_of(run.out())) {
    if (!offered.empty()) out.push_back(offered);
  }
  return out;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("bash completes subcommands and flags", "[launcher]") {
  CHECK(completions({"accel", "la"}) == Words{"launch"});
  CHECK(completions({"accel", "config", "val"}) == Words{"validate"});
  CHECK(completions({"accel", "launch", "--num_p"}) == Words{"--num_processes"});
  CHECK(completions({"accel", "launch", "--num-p"}) == Words{"--num_processes"});
  CHECK(completions({"accel", "launch", "--cpu", "--num_processes", "2", "--dry"}) == Words{"--dry_run"});
  CHECK(completions({"accel", "launch", "--num-processes", "2", "--dry"}) == Words{"--dry_run"});
  CHECK(completions({"accel", "launch", "--num_processes", "=", "2", "--dry"}) == Words{"--dry_run"});
  CHECK(completions({"accel", "estimate-memory", "--num_p"}) == Words{"--num_processes"});
  CHECK(completions({"accel", "--vers"}) == Words{"--version"});
  CHECK(completions({"accel", "completion", "nothing-like-it"}).empty());
  CHECK(completions({"accel", ""}).size() >= 5);
}

TEST_CASE("bash completes the program, its arguments, and values as files", "[launcher]") {
  const TempDir dir;
  write_file(dir / "train_me", "");
  write_file(dir / "with blank", "");
  CHECK(completions({"accel", "launch", "with"}, dir.path()) == Words{"with blank"});
  const Words file = {"train_me"};
  CHECK(completions({"accel", "launch", "tra"}, dir.path()) == file);
  CHECK(completions({"accel", "launch", "./x", "tra"}, dir.path()) == file);
  CHECK(completions({"accel", "launch", "./x", "--num_p"}, dir.path()).empty());
  CHECK(completions({"accel", "launch", "--config_file", "tra"}, dir.path()) == file);
}

TEST_CASE("the scripts hold every subcommand", "[launcher]") {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    AccelRun run({"completion", shell});
    CHECK(run.finish() == 0);
    for (const char* word : {"launch", "config", "env", "estimate-memory", "completion", "validate"}) {
      INFO(shell << " " << word);
      CHECK_THAT(run.out(), ContainsSubstring(word));
    }
  }
  AccelRun fish({"completion", "fish"});
  CHECK(fish.finish() == 0);
  CHECK_THAT(fish.out(), ContainsSubstring("'__fish_seen_subcommand_from launch' -l num_processes -r"));
  AccelRun other({"completion", "tcsh"});
  CHECK(other.finish() == 2);
  CHECK_THAT(other.err(), ContainsSubstring("bash, zsh or fish"));
}
