// `accel launch train.cpp`: compiled once, shown errors, started with the rest of the words.
#include "launch_test_support.h"
#include "launcher/build_flags.h"
#include "test_support.h"

using namespace accelerate::testing;
using accelerate::concat;

namespace {

constexpr const char* kProgram = R"(#include <accelerate/core/strings.h>
#include <cstdio>
#include "answer.h"
int main(int argc, char** argv) {
  std::printf("%s\n", accelerate::concat("answer ", kAnswer, " to ", argc > 1 ? argv[1] : "").c_str());
})";

// A folder with a program, and a cache of its own.
struct Project {
  TempDir dir;
  std::vector<std::pair<std::string, std::string>> environment = {
      {"XDG_CACHE_HOME", dir / "cache"}, {"CXXFLAGS", "-O0"}, {"CUDA_VISIBLE_DEVICES", "-1"}};

  explicit Project(const std::string& source = kProgram) {
    write_file(dir / "my program.cpp", source);
    write_file(dir / "answer.h", "constexpr int kAnswer = 42;\n");
  }
  std::string source() const { return dir / "my program.cpp"; }
  AccelRun launch(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {"launch", "--cpu", "--num_processes", "1"});
    flags.insert(flags.end(), {source(), "everything"});
    return AccelRun(flags, {.environment = environment});
  }
  // Runs it; true if the compiler was needed.
  bool compiles(const std::string& printed, const std::vector<std::string>& flags = {}) const {
    AccelRun run = launch(flags);
    CHECK(run.finish() == 0);
    INFO(run.err());
    CHECK(run.out() == printed + "\n");
    return AccelRun::count_in(run.err(), " compiled in ") == 1;
  }
  bool compiles_silently() const {
    AccelRun run = launch();
    CHECK(run.finish() == 0);
    return AccelRun::count_in(run.err(), " compiled in ") == 1;
  }
  size_t cached() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "cache/accelerate/programs")) {
      CHECK_FALSE(entry.path().filename().string().starts_with("tmp-"));
      count += entry.path().extension() != ".headers" ? 1 : 0;
    }
    return count;
  }
};

}  // namespace

TEST_CASE("words of a command line are split as a shell does", "[launcher]") {
  using Words = std::vector<std::string>;
  CHECK(accelerate::cli::split_words("").empty());
  CHECK(accelerate::cli::split_words("  -O2\t-g\n") == Words{"-O2", "-g"});
  CHECK(accelerate::cli::split_words(R"(-DX='a b' "c d"e f\ g '')") == Words{"-DX=a b", "c de", "f g", ""});
}

TEST_CASE("a source is compiled once and again when anything changes", "[launcher]") {
  Project project;
  CHECK(project.compiles("answer 42 to everything"));
  CHECK_FALSE(project.compiles("answer 42 to everything"));
  write_file(project.dir / "answer.h", "constexpr int kAnswer = 7;\n");
  CHECK(project.compiles("answer 7 to everything"));
  write_file(project.dir / "answer.h", "constexpr int kAnswer = 42;\n");
  CHECK_FALSE(project.compiles("answer 42 to everything"));
  CHECK(project.compiles("answer 42 to everything", {"--cxxflags", "-DOTHER='a b'"}));
  write_file(project.source(), std::string(kProgram) + "\n// changed\n");
  CHECK(project.compiles("answer 42 to everything"));
  CHECK_FALSE(project.compiles("answer 42 to everything"));
  CHECK(project.cached() == 4);
}

TEST_CASE("a source is compiled again when an object, archive or library of the user's changes",
          "[launcher]") {
  Project project("#include <cstdio>\nint answer();\nint main() { std::printf(\"%d\\n\", answer()); }\n");
  const std::string object = project.dir / "h.o";
  const auto build = [&](int answer) {
    write_file(project.dir / "h.cpp", concat("int answer() { return ", answer, "; }\n"));
    const std::string folder = accelerate::shell_quote(project.dir.path());
    AccelRun made({"-c", concat("cd ", folder,
                                " && c++ -c h.cpp -o h.o && rm -f libh.a && ar rc libh.a h.o && "
                                "echo h.o > list")},
                  {}, "/bin/sh");
    REQUIRE(made.finish() == 0);
  };
  const std::vector<std::string> ways = {object, concat("-L", project.dir.path(), " -lh"),
                                         concat("-Wl,", object), project.dir / "libh.a"};
  build(1);
  for (const std::string& way : ways) CHECK(project.compiles("1", {"--cxxflags", way}));
  for (const std::string& way : ways) CHECK_FALSE(project.compiles("1", {"--cxxflags", way}));
  build(22);
  for (const std::string& way : ways) {
    INFO(way);
    CHECK(project.compiles("22", {"--cxxflags", way}));
  }
  // Relative to where it is started, and found by a variable.
  const auto launch_in = [&](const std::string& flags) {
    AccelRun run({"launch", "--cpu", "--num_processes", "1", "--cxxflags", flags, project.source()},
                 {.environment = project.environment, .working_directory = project.dir.path()});
    CHECK(run.finish() == 0);
    return run.out();
  };
  CHECK(launch_in("h.o") == "22\n");
  project.environment.emplace_back("LIBRARY_PATH", project.dir.path());
  CHECK(launch_in("-lh") == "22\n");
  build(333);
  CHECK(launch_in("h.o") == "333\n");
  CHECK(launch_in("-lh") == "333\n");
}

TEST_CASE("a source is compiled again when the compiler looks for headers elsewhere", "[launcher]") {
  Project project(
      "#include <cstdio>\n#include <number.h>\nint main() { std::printf(\"%d\\n\", kNumber); }\n");
  for (const char* name : {"CPATH", "CPLUS_INCLUDE_PATH"}) {
    for (const int number : {1, 2}) {
      const std::string folder = project.dir / concat(name, number);
      std::filesystem::create_directories(folder);
      write_file(folder + "/number.h", concat("constexpr int kNumber = ", number, ";\n"));
      project.environment.emplace_back(name, folder);
      CHECK(project.compiles(std::to_string(number)));
    }
    project.environment.pop_back();
    project.environment.pop_back();
  }
}

TEST_CASE("a signal ends the compiler and leaves nothing", "[launcher]") {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    Project project;
    // Not the driver alone does the work, and this one does not listen.
    write_file(project.dir / "compiler",
               "#!/bin/sh\ntrap '' INT TERM HUP\necho compiling\nsleep 60\nsleep 60\n");
    std::filesystem::permissions(project.dir / "compiler", std::filesystem::perms::owner_all);
    project.environment.emplace_back("CXX", project.dir / "compiler");
    AccelRun run = project.launch();
    REQUIRE(run.wait_for("compiling\n"));
    run.signal(number);
    CHECK(run.finish() == 128 + number);
    CHECK_THAT(run.err(), ContainsSubstring(concat(accelerate::signal_name(number), ": compiling ")));
    CHECK(run.nothing_left());
    CHECK(project.cached() == 0);
  }
}

TEST_CASE("programs that were not used for long leave the cache, except where they run", "[launcher]") {
  Project project("int main() { return 0; }\n");
  TempDir dir;
  write_file(project.source(), concat("#include <unistd.h>\nint main() { while (access(\"", dir / "go",
                                      "\", F_OK) != 0) usleep(1000); }\n"));
  AccelRun running = project.launch();
  REQUIRE(running.wait_for(" compiled in "));
  REQUIRE(eventually([&] { return running.processes().size() == 3; }));  // launcher, guard, rank
  CHECK(project.cached() == 1);
  const std::string cache = project.dir / "cache/accelerate/programs";
  const auto age = [](const std::filesystem::path& path, int hours) {
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  std::string in_use;
  for (const auto& entry : std::filesystem::directory_iterator(cache)) {
    if (entry.path().extension() != ".headers") in_use = entry.path();
  }
  age(in_use, 1000);
  for (int i = 0; i < 40; ++i) {
    write_file(concat(cache, "/old-", i, "-x"), "x");
    write_file(concat(cache, "/old-", i, ".headers"), "");
    age(concat(cache, "/old-", i, "-x"), i + 1);
  }
  write_file(project.source(), "int main() { return 0; }\n");
  CHECK(project.compiles_silently());
  CHECK(project.cached() == 33);  // 32, and the one in use
  CHECK(std::filesystem::exists(in_use));
  CHECK(std::filesystem::exists(cache + "/old-30-x"));
  CHECK_FALSE(std::filesystem::exists(cache + "/old-31-x"));
  CHECK_FALSE(std::filesystem::exists(cache + "/old-31.headers"));
  write_file(dir / "go", "");
  CHECK(running.finish() == 0);
}

TEST_CASE("two at once compile side by side", "[launcher]") {
  const Project project;
  AccelRun first = project.launch();
  AccelRun second = project.launch();
  CHECK(first.finish() == 0);
  CHECK(second.finish() == 0);
  CHECK(first.out() == "answer 42 to everything\n");
  CHECK(second.out() == first.out());
  CHECK(project.cached() == 1);
}

TEST_CASE("the compiler's errors are shown and nothing starts", "[launcher]") {
  const Project project("int main() { return no_such_name; }\n");
  AccelRun run = project.launch();
  CHECK(run.finish() == 2);
  CHECK(run.out().empty());
  CHECK_THAT(run.err(), ContainsSubstring("no_such_name") && ContainsSubstring("my program.cpp:1") &&
                            ContainsSubstring("was not compiled"));
  CHECK(project.cached() == 0);
}

TEST_CASE("a missing source or compiler is said", "[launcher]") {
  Project project;
  AccelRun missing({"launch", project.dir / "none.cpp"});
  CHECK(missing.finish() == 3);
  CHECK_THAT(missing.err(), ContainsSubstring("none.cpp") && ContainsSubstring("No such file"));
  std::filesystem::create_directories(project.dir / "folder.cc");
  AccelRun folder({"launch", project.dir / "folder.cc"});
  CHECK(folder.finish() == 3);
  project.environment.emplace_back("CXX", "no-such-compiler -x");
  AccelRun compiler = project.launch();
  CHECK(compiler.finish() == 2);
  CHECK_THAT(compiler.err(), ContainsSubstring("CXX is 'no-such-compiler -x'"));
  // Nothing is compiled to show what would be started.
  AccelRun dry = project.launch({"--dry_run"});
  CHECK(dry.finish() == 0);
  CHECK_THAT(dry.out(), ContainsSubstring("my program.cpp"));
}
