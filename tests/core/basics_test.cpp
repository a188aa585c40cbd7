#include <filesystem>
#include <fstream>

#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/log.h"
#include "accelerate/core/strings.h"
#include "test_support.h"

using namespace accelerate;

TEST_CASE("numbers and booleans are read whole or not at all") {
  CHECK(parse_int(" 42 ") == 42);
  CHECK(parse_int("-7") == -7);
  CHECK(parse_int("+7") == 7);
  for (const char* text : {"", " ", "4 2", "4x", "0x10", "1.0", "+-3", "99999999999999999999"}) {
    INFO(text);
    CHECK_FALSE(parse_int(text));
  }
  CHECK(parse_double("1e8") == 1e8);
  for (const char* text : {"", "nan", "inf", "1,5", "1e999"}) CHECK_FALSE(parse_double(text));
  for (const char* text : {"y", "YES", "t", "True", "on", "1"}) CHECK(parse_bool(text) == true);
  for (const char* text : {"n", "No", "f", "FALSE", "off", "0"}) CHECK(parse_bool(text) == false);
  for (const char* text : {"", "ja", "2", "none"}) CHECK_FALSE(parse_bool(text));
}

TEST_CASE("the nearest name is a likely slip, never a far guess") {
  const std::vector<std::string> names = {"num_processes", "num_machines", "mixed_precision", "debug"};
  CHECK(nearest_name("num_proceses", names) == "num_processes");
  CHECK(nearest_name("num-processes", names) == "num_processes");
  CHECK(nearest_name("NUM_MACHINES", names) == "num_machines");
  CHECK(nearest_name("dbeug", names) == "debug");
  CHECK_FALSE(nearest_name("learning_rate", names));
  CHECK_FALSE(nearest_name("", names));
}

TEST_CASE("text helpers") {
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',').empty());
  const std::vector<std::string> parts = {"a", "b"};
  CHECK(join(parts, "-") == "a-b");
  CHECK(trim("\t a b \r\n") == "a b");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(uint64_t{3} << 30) == "3.0 GiB");
  const std::vector<int> ranks = {1, 2, 5};
  CHECK(format_ranks(ranks) == "ranks 1, 2 and 5");
  CHECK(shell_quote("a b'c") == "'a b'\\''c'");
  CHECK(shell_quote("--x=1") == "--x=1");
}

TEST_CASE("errors read as one sentence with rank, expectation and hint, and carry their exit code") {
  const ConfigError error({.what = "batch size",
                           .expected = "a positive number",
                           .got = "0",
                           .hint = "Use 1 or more.",
                           .rank = 3});
  CHECK(std::string(error.what()) == "rank 3: batch size: expected a positive number, got 0. Use 1 or more.");
  CHECK(error.exit_code() == 2);
  CHECK(CommError({.what = "x"}).exit_code() == 4);
  CHECK(std::string(DataError({.what = "opening f", .got = "nothing"}).what()) == "opening f: got nothing");
  CHECK(exit_code(std::runtime_error("x")) == 1);
  CHECK(exit_code(CheckpointError({.what = "x"})) == 6);
  CHECK(error_message(std::runtime_error("short\nException raised from f (most recent call first)")) ==
        "short");
}

TEST_CASE("log lines come from the main process, or from all with their rank") {
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  Logger main(0, LogLevel::kInfo, sink);
  Logger other(2, LogLevel::kWarning, sink);
  main.info("a");
  main.debug("hidden");
  other.error("hidden");
  other.warning("b", LogRanks::kAll);
  main.warning_once("c");
  main.warning_once("c");
  CHECK(lines == std::vector<std::string>{"a", "[rank 2] warning: b", "warning: c"});
  CHECK(parse_log_level("WARN") == LogLevel::kWarning);
  CHECK(parse_log_level("20") == LogLevel::kInfo);
  CHECK_FALSE(parse_log_level("loud"));
}

TEST_CASE("a deadline runs out and never goes negative") {
  const Deadline gone = Deadline::after(std::chrono::milliseconds(0));
  CHECK(gone.expired());
  CHECK(gone.remaining().count() == 0);
  const Deadline later = Deadline::after(std::chrono::seconds(100));
  CHECK_FALSE(later.expired());
  CHECK(later.poll_timeout_ms() > 99'000);
}

TEST_CASE("a file is replaced whole or not at all") {
  const auto folder = std::filesystem::temp_directory_path() / concat("accelerate-files-", ::getpid());
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "a.txt").string();
  write_file_atomically(system_files(), path, std::string("old"));
  CHECK_THROWS_WITH(write_file_atomically(system_files(), path,
                                          [](WritableFile& file) {
                                            file.write(std::as_bytes(std::span("half", 4)));
                                            throw std::runtime_error("stopped");
                                          }),
                    "stopped");
  std::ifstream in(path);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == "old");
  CHECK(system_files().list(folder.string()) == std::vector<std::string>{"a.txt"});
  CHECK_THROWS_WITH(write_file_atomically(system_files(), (folder / "no" / "b").string(), std::string("x")),
                    ContainsSubstring("No such file"));
  CHECK_THROWS_AS(system_files().list((folder / "no").string()), CheckpointError);
  std::filesystem::remove_all(folder);
}
