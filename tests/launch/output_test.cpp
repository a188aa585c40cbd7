// What the ranks print, and how it reaches the user.
#include "accelerate/core/machine.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

std::vector<std::string> shell_words(int processes, const std::string& command,
                                     const std::vector<std::string>& flags = {}) {
  std::vector<std::string> out = {"launch", "--cpu", "--quiet", "--num_processes", std::to_string(processes)};
  out.insert(out.end(), flags.begin(), flags.end());
  out.insert(out.end(), {"/bin/sh", "-c", command});
  return out;
}

}  // namespace

TEST_CASE("every line says whose it is, where there is more than one rank", "[launch]") {
  AccelRun two(launch_words(2, {"print", "a", "print", "", "eprint", "b"}));
  CHECK(two.finish() == 0);
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    CHECK(AccelRun::count_in(two.out(), concat(rank, "a\n")) == 1);
    CHECK(AccelRun::count_in(two.out(), concat(rank, "\n")) == 1);
    CHECK(AccelRun::count_in(two.err(), concat(rank, "b\n")) == 1);
  }
  AccelRun bare(launch_words(2, {"print", "a"}, {"--no_prefix"}));
  CHECK(bare.finish() == 0);
  CHECK(bare.out() == "a\na\n");
  AccelRun one(launch_words(1, {"raw", "a\\nb"}));
  CHECK(one.finish() == 0);
  CHECK(one.out() == "a\nb");
}

TEST_CASE("lines of ranks never mix", "[launch]") {
  const std::string text(300, 'x');
  AccelRun run(shell_words(8, concat("for i in $(seq 200); do echo \"$RANK:$i:", text, "\"; done")));
  CHECK(run.finish() == 0);
  const auto lines = lines_of(run.out());
  REQUIRE(lines.size() == 8 * 200);
  std::vector<int> next(8, 1);
  bool intact = true;
  for (const std::string& line : lines) {
    const int rank = line[6] - '0';
    intact = intact && rank >= 0 && rank < 8 &&
             line == concat("[rank ", rank, "] ", rank, ":", next[rank]++, ":", text);
  }
  CHECK(intact);
}

TEST_CASE("progress lines pass through live", "[launch]") {
  TempDir dir;
  AccelRun run(launch_words(2, {"@0",      "raw",   "10%\\r",    "@0",     "raw",   "20%\\r",   "@0", "touch",
                                dir / "a", "await", dir / "go",  "@1",     "print", "hello",    "@1", "touch",
                                dir / "b", "await", dir / "b.1", "@0",     "await", dir / "on", "@0", "raw",
                                "30%\\r",  "@0",    "raw",       "done\\n"}));
  REQUIRE(run.wait_for("[rank 0] 10%\r[rank 0] 20%\r"));
  CHECK(run.out() == "[rank 0] 10%\r[rank 0] 20%\r");
  write_file(dir / "go", "");
  REQUIRE(run.wait_for("hello\n"));
  // The other rank's line does not overwrite the bar, but starts below it.
  CHECK(run.out() == "[rank 0] 10%\r[rank 0] 20%\r\n[rank 1] hello\n");
  write_file(dir / "on", "");
  CHECK(run.finish() == 0);
  CHECK_THAT(run.out(), ContainsSubstring("hello\n[rank 0] 30%\r[rank 0] done\n"));
}

TEST_CASE("bars that begin with a carriage return and Windows line ends work", "[launch]") {
  AccelRun bar(launch_words(2, {"@0", "raw", "\\r10%\\r20%\\r30%\\n"}));
  CHECK(bar.finish() == 0);
  CHECK(bar.out() == "[rank 0] 10%\r[rank 0] 20%\r[rank 0] 30%\n");
  AccelRun windows(launch_words(2, {"@0", "raw", "a\\r\\nb\\r\\n"}));
  CHECK(windows.finish() == 0);
  CHECK(windows.out() == "[rank 0] a\r\n[rank 0] b\r\n");
}

TEST_CASE("an unfinished line is shown after a moment, and goes on", "[launch]") {
  TempDir dir;
  AccelRun run(launch_words(2, {"@0", "raw", "name? ", "@0", "await", dir / "go", "@0", "raw", "x\\n"}));
  REQUIRE(run.wait_for("[rank 0] name? "));
  write_file(dir / "go", "");
  CHECK(run.finish() == 0);
  CHECK(run.out() == "[rank 0] name? x\n");
  // At the end it is shown whether finished or not.
  AccelRun last(launch_words(2, {"@1", "raw", "no end"}));
  CHECK(last.finish() == 0);
  CHECK(last.out() == "[rank 1] no end\n");
}

TEST_CASE("each rank can have its own file", "[launch]") {
  TempDir dir;
  const std::string logs = dir / "new/logs";
  SECTION("instead of the terminal") {
    AccelRun run(launch_words(2, {"print", "out", "eprint", "err", "env", "RANK"}, {"--log_dir", logs}));
    CHECK(run.finish() == 0);
    CHECK(run.all().empty());
    for (const int rank : {0, 1}) {
      // Each stream has its order; which of them comes first may change.
      const std::string log = read_file(concat(logs, "/rank_", rank, ".log"));
      CHECK(lines_of(log).size() == 3);
      CHECK_THAT(log, ContainsSubstring("err\n"));
      CHECK(log.find("out\n") < log.find(concat("RANK=", rank, "\n")));
    }
  }
  SECTION("and the terminal") {
    AccelRun run(launch_words(2, {"print", "out"}, {"--log_dir", logs, "--tee"}));
    CHECK(run.finish() == 0);
    CHECK(AccelRun::count_in(run.out(), "out\n") == 2);
    CHECK(read_file(logs + "/rank_1.log") == "out\n");
  }
  SECTION("with the errors of the one that failed") {
    AccelRun run(
        launch_words(2, {"@1", "eprint", "the reason", "@1", "exit", "3", "sleep"}, {"--log_dir", logs}));
    CHECK(run.finish() == 3);
    CHECK_THAT(run.err(),
               ContainsSubstring("the reason") && ContainsSubstring("see " + logs + "/rank_1.log"));
  }
  SECTION("with its errors and not what else it printed") {
    const std::string noise = "for i in 1 2 3 4 5 6 7 8 9 10; do echo out $i; done";
    AccelRun run(shell_words(2, concat("[ $RANK = 0 ] && sleep 60; echo THE-ERROR >&2; ", noise, "; exit 9"),
                             {"--log_dir", logs}));
    CHECK(run.finish() == 9);
    CHECK_THAT(run.err(), ContainsSubstring("last errors of rank 1:\naccel:   THE-ERROR\n"));
    CHECK(AccelRun::count_in(run.err(), "out 10") == 0);
    const std::string log = read_file(logs + "/rank_1.log");
    CHECK_THAT(log, ContainsSubstring("THE-ERROR\n") && ContainsSubstring("out 10\n"));
  }
  SECTION("also where output and errors go the same way") {
    const std::string noise = "for i in 1 2 3 4 5 6 7 8 9 10; do echo out $i; done";
    const std::string words = concat(bin("accel"),
                                     " launch --cpu --num_processes 2 sh -c '[ $RANK = 0 ] && sleep 60; "
                                     "echo THE-ERROR >&2; sleep 0.5; ",
                                     noise, "; exit 9' 2>&1");
    AccelRun run({"-c", words}, {}, "/bin/sh");
    CHECK(run.finish() == 9);
    CHECK_THAT(run.out(), ContainsSubstring("last errors of rank 1:\naccel:   THE-ERROR\n"));
  }
  SECTION("and none of an earlier run with more ranks") {
    AccelRun four(launch_words(4, {"print", "old"}, {"--log_dir", logs}));
    CHECK(four.finish() == 0);
    CHECK(std::filesystem::exists(logs + "/rank_3.log"));
    for (const char* mine : {"/rank_x.log", "/rank_7.txt"}) write_file(logs + mine, "");
    AccelRun two(launch_words(2, {"print", "new"}, {"--log_dir", logs}));
    CHECK(two.finish() == 0);
    for (const char* name : {"/rank_2.log", "/rank_3.log"}) CHECK_FALSE(std::filesystem::exists(logs + name));
    for (const char* name : {"/rank_1.log", "/rank_x.log", "/rank_7.txt"})
      CHECK(std::filesystem::exists(logs + name));
  }
  SECTION("or says why not") {
    AccelRun run(launch_words(2, {"print", "out"}, {"--log_dir", "/proc/nowhere"}));
    CHECK(run.finish() == 3);
    CHECK_THAT(run.err(), ContainsSubstring("/proc/nowhere") && ContainsSubstring("--log_dir"));
  }
}

TEST_CASE("standard input goes to rank 0", "[launch]") {
  const std::string words = accelerate::join(launch_words(2, {"stdin"}), " ");
  AccelRun run({"-c", "printf 'line\\n' | " + bin("accel") + " " + words}, {}, "/bin/sh");
  CHECK(run.finish() == 0);
  CHECK(run.out() == "[rank 0] line\n");
}

TEST_CASE("a reader that goes away does not stop the job", "[launch]") {
  TempDir dir;
  const std::string script =
      "print first await " + (dir / "go") + " print second print third touch " + (dir / "end");
  const std::string words = "launch --cpu --num_processes 2 " + bin("rank_script") + " " + script;
  AccelRun run({"-c", concat("{ ", bin("accel"), " ", words, " 2> ", dir / "said", "; echo $? > ",
                             dir / "code", "; } | head -n 1; touch ", dir / "go")},
               {}, "/bin/sh");
  // head ends only once accel's pipe is closed by it; the shell waits for head alone to go on.
  write_file(dir / "go", "");
  CHECK(run.finish() == 0);
  CHECK(eventually([&] { return read_file(dir / "code") == "0\n"; }));
  CHECK(AccelRun::count_in(read_file(dir / "said"), "accel: the reader of standard output is gone") == 1);
  CHECK(std::filesystem::exists(dir / "end.0"));
  CHECK(std::filesystem::exists(dir / "end.1"));
  CHECK(run.nothing_left());
}

TEST_CASE("cores are shared out unless the user says otherwise", "[launch]") {
  const int share = std::max(1, accelerate::physical_cores() / 2);
  AccelRun shared(launch_words(2, {"env", "OMP_NUM_THREADS"}));
  CHECK(shared.finish() == 0);
  CHECK(AccelRun::count_in(shared.out(), concat("OMP_NUM_THREADS=", share, "\n")) == 2);
  CHECK(shared.err().empty());
  AccelRun kept(launch_words(2, {"env", "OMP_NUM_THREADS"}), {.environment = {{"OMP_NUM_THREADS", "7"}}});
  CHECK(kept.finish() == 0);
  CHECK(AccelRun::count_in(kept.out(), "OMP_NUM_THREADS=7\n") == 2);
  AccelRun given(launch_words(2, {"env", "OMP_NUM_THREADS"}, {"--num_cpu_threads_per_process", "3"}));
  CHECK(given.finish() == 0);
  CHECK(AccelRun::count_in(given.out(), "OMP_NUM_THREADS=3\n") == 2);
}

TEST_CASE("streams go to log files, here, or both, as torchrun's masks say", "[launch]") {
  struct Case {
    std::vector<std::string> flags;
    std::string logged;  // "o" standard output, "e" standard error
    std::string shown;
  };
  for (const Case& c :
       {Case{{}, "oe", ""}, Case{{"--tee"}, "oe", "oe"}, Case{{"--tee", "3"}, "oe", "oe"},
        Case{{"-t", "1"}, "oe", "o"}, Case{{"--tee=2"}, "oe", "e"}, Case{{"--tee", "0"}, "oe", ""},
        Case{{"--redirects", "3"}, "oe", ""}, Case{{"--redirects", "1"}, "o", "e"},
        Case{{"-r", "0"}, "", "oe"}, Case{{"-r", "1", "-t", "2"}, "oe", "e"},
        Case{{"--redirects", "2", "--tee", "2"}, "e", "oe"}}) {
    TempDir dir;
    std::vector<std::string> flags = {"--log_dir", dir.path()};
    flags.insert(flags.end(), c.flags.begin(), c.flags.end());
    INFO(accelerate::join(flags, " "));
    AccelRun run(launch_words(2, {"print", "output", "eprint", "error"}, flags));
    CHECK(run.finish() == 0);
    for (const int rank : {0, 1}) {
      const std::string log = read_file(dir / concat("rank_", rank, ".log"));
      const auto count = [](const std::string& text, const char* word) {
        return AccelRun::count_in(text, word);
      };
      CHECK(count(log, "output\n") == count(c.logged, "o"));
      CHECK(count(log, "error\n") == count(c.logged, "e"));
      CHECK(count(run.out(), concat("[rank ", rank, "] output\n").c_str()) == count(c.shown, "o"));
      CHECK(count(run.err(), concat("[rank ", rank, "] error\n").c_str()) == count(c.shown, "e"));
    }
  }
}
