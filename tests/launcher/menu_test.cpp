// `accel config` in a terminal: menus, and the terminal afterwards.
#include "launcher/menu.h"

#include "pty_test_support.h"
#include "test_support.h"

using namespace accelerate::testing;
using namespace accelerate::cli;
using accelerate::concat;

namespace {

constexpr const char* kFirstMenu = "MULTI_CPU";
constexpr const char* kDown = "\x1b[B";
constexpr const char* kUp = "\x1b[A";

std::vector<std::string> config_words(const std::string& file) {
  return {"config", "--config_file", file};
}

// Enter until the answers are saved.
bool take_defaults(TerminalRun& run) {
  for (int questions = 0; questions < 20; ++questions) {
    run.type("\r");
    ::usleep(20'000);
    if (run.finish_within(std::chrono::milliseconds(100))) return true;
  }
  return false;
}

Key letter(char text) {
  return {Key::Kind::kText, text};
}

}  // namespace

TEST_CASE("a menu is walked by arrows, letters and numbers", "[launcher]") {
  const std::vector<Choice> choices = {{"no", "a"}, {"bf16", "b"}, {"fp16", "c"}, {"fp8", "d"}};
  Menu menu(choices, "bf16");
  CHECK(menu.current().value == "bf16");
  const auto press = [&](const Key& key) {
    menu.press(key);
    return menu.current().value;
  };
  CHECK(press({Key::Kind::kDown}) == "fp16");
  CHECK(press({Key::Kind::kUp}) == "bf16");
  CHECK(press({Key::Kind::kEnd}) == "fp8");
  CHECK(press({Key::Kind::kDown}) == "no");
  CHECK(press({Key::Kind::kUp}) == "fp8");
  CHECK(press({Key::Kind::kHome}) == "no");
  CHECK(press(letter('j')) == "bf16");
  CHECK(press(letter('k')) == "no");
  CHECK(press(letter('3')) == "fp16");
  CHECK(press(letter('9')) == "fp16");
  CHECK(press(letter('f')) == "fp16");
  CHECK(press(letter('p')) == "fp16");
  CHECK(press(letter('8')) == "fp8");
  CHECK(press(letter('N')) == "no");
  CHECK(press(letter('x')) == "no");
}

TEST_CASE("more than nine choices are reached by two digits, and scroll", "[launcher]") {
  std::vector<Choice> choices;
  for (int i = 1; i <= 30; ++i) choices.push_back({concat("c", i), "help"});
  Menu menu(choices, "c1");
  menu.press(letter('2'));
  menu.press(letter('5'));
  CHECK(menu.current().value == "c25");
  const auto lines = menu.lines(40, 10);
  CHECK(lines.size() == 10);
  CHECK(std::count_if(lines.begin(), lines.end(),
                      [](const std::string& line) { return line.starts_with("> 25) c25"); }) == 1);
}

TEST_CASE("a menu fits any width", "[launcher]") {
  const std::vector<Choice> choices = {{"NO", "one process on one device"},
                                       {"MULTI_CPU", "data parallel over CPU processes"}};
  const Menu menu(choices, "MULTI_CPU");
  const auto wide = menu.lines(80, 24);
  REQUIRE(wide.size() == 2);
  CHECK(wide[0] == "  1) NO         one process on one device");
  CHECK(wide[1] == "> 2) MULTI_CPU  data parallel over CPU processes");
  // The marked choice's explanation moves below the list.
  const auto narrow = menu.lines(24, 24);
  CHECK(accelerate::join(narrow, "\n") ==
        "  1) NO\n> 2) MULTI_CPU\n    data parallel over\n    CPU processes");
  for (size_t columns : {1, 2, 5, 9, 20, 39}) {
    for (size_t rows : {1, 2, 3, 24}) {
      const auto lines = menu.lines(columns, rows);
      CHECK(lines.size() <= std::max<size_t>(rows, 1));
      for (const std::string& line : lines) CHECK(line.size() <= columns);
    }
  }
}

TEST_CASE("config in a terminal: every way of choosing", "[launcher]") {
  const TempDir dir;
  struct Case {
    std::string keys;
    std::string chosen;
  };
  int number = 0;
  for (const Case& choice : {Case{kDown, "MULTI_CPU"}, Case{concat(kDown, kUp), "'NO'"},
                             Case{"\x1bOB", "MULTI_CPU"}, Case{"j", "MULTI_CPU"}, Case{"2", "MULTI_CPU"},
                             Case{"2"
                                  "1",
                                  "'NO'"},
                             Case{"mu", "MULTI_CPU"}, Case{"mun", "'NO'"}}) {
    const std::string file = dir / concat("c", ++number, ".yaml");
    TerminalRun run(config_words(file), 120);
    REQUIRE(run.wait_for(kFirstMenu));
    run.type(choice.keys);
    const bool saved = take_defaults(run);
    INFO(run.screen());
    CHECK(saved);
    CHECK(run.finish() == 0);
    CHECK(run.mode_is_as_before());
    CHECK_THAT(read_file(file), ContainsSubstring("distributed_type: " + choice.chosen));
    CHECK_THAT(run.screen(), ContainsSubstring("faster, same memory a process"));
  }
}

TEST_CASE("config in a terminal: typed answers, with corrections", "[launcher]") {
  const TempDir dir;
  const std::string file = dir / "c.yaml";
  TerminalRun run(config_words(file), 100);
  REQUIRE(run.wait_for(kFirstMenu));
  run.type("2\r");
  REQUIRE(run.wait_for("]: "));
  run.type("abc\r");
  REQUIRE(run.wait_for("got 'abc'"));
  run.type("1\r");
  REQUIRE(run.wait_for("(debug)?"));
  run.type("\r");
  REQUIRE(run.wait_for("(num_processes: "));
  run.type(
      "77\x7f\x7f\x7f"
      "9\x15"
      "3\r");
  const bool saved = take_defaults(run);
  INFO(run.screen());
  CHECK(saved);
  CHECK(run.finish() == 0);
  CHECK_THAT(read_file(file), ContainsSubstring("num_processes: 3"));
}

TEST_CASE("config in a terminal: giving up saves nothing and leaves the terminal as it was", "[launcher]") {
  const TempDir dir;
  const std::string file = dir / "c.yaml";
  struct Case {
    std::string first;  // answers before giving up
    std::string keys;
    int signal;
    int code;
  };
  for (const Case& end :
       {Case{"", "\x03", 0, 130}, Case{"2\r", "12\x03", 0, 130}, Case{"", "\x1b", 0, 1},
        Case{"2\r", "\x1b", 0, 1}, Case{"", "\x04", 0, 2}, Case{"", "", SIGTERM, 128 + SIGTERM},
        Case{"2\r", "", SIGINT, 130}, Case{"", "", SIGHUP, 128 + SIGHUP}}) {
    TerminalRun run(config_words(file), 80);
    REQUIRE(run.wait_for(kFirstMenu));
    CHECK_FALSE(run.mode_is_as_before());
    run.type(end.first);
    if (!end.first.empty()) REQUIRE(run.wait_for("]: "));
    run.type(end.keys);
    if (end.signal != 0) run.signal(end.signal);
    INFO("keys " << end.keys << " signal " << end.signal);
    CHECK(run.finish() == end.code);
    CHECK(run.mode_is_as_before());
    CHECK_FALSE(std::filesystem::exists(file));
  }
}

TEST_CASE("config in a narrow terminal never writes past its edge", "[launcher]") {
  const TempDir dir;
  const std::string file = dir / "c.yaml";
  TerminalRun run(config_words(file), 30);
  REQUIRE(run.wait_for(kFirstMenu));
  run.type(kDown);
  REQUIRE(run.wait_for("> 2) MULTI_CPU"));
  REQUIRE(run.wait_for("faster, same"));
  for (const std::string& line : lines_of(run.screen())) {
    // What is seen of a line: without escape sequences and what was written over.
    std::string seen;
    for (size_t at = 0; at < line.size(); ++at) {
      if (line[at] == '\x1b') {
        while (at < line.size() && (std::isalpha(static_cast<unsigned char>(line[at])) == 0)) ++at;
      } else if (line[at] == '\r') {
        CHECK(seen.size() <= 30);
        seen.clear();
      } else {
        seen += line[at];
      }
    }
    CHECK(seen.size() <= 30);
  }
  CHECK(take_defaults(run));
  CHECK_THAT(read_file(file), ContainsSubstring("MULTI_CPU"));
}

TEST_CASE("config on a dumb terminal asks plainly", "[launcher]") {
  const TempDir dir;
  const std::string file = dir / "c.yaml";
  TerminalRun run(config_words(file), 80, "dumb");
  REQUIRE(run.wait_for("Choice [NO]: "));
  CHECK(run.mode_is_as_before());
  run.type("2\n\n\n2\n\n\n\n\n");
  CHECK(run.finish() == 0);
  CHECK_THAT(read_file(file), ContainsSubstring("MULTI_CPU"));
  CHECK(run.screen().find('\x1b') == std::string::npos);
}
