// The examples on text, as whole jobs, on texts that the tests write.
#include <cmath>

#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

// One thread a rank, also where a rank is alone: these models are too small for more.
const RunOptions kOneThread{.environment = {{"OMP_NUM_THREADS", "1"}}};

// Verses with references as the program bible prints them; the testaments differ in their words and lengths.
std::string small_bible() {
  std::string out;
  for (int i = 0; i < 200; ++i) {
    const bool is_new = i % 3 == 0;
    out += concat(is_new ? "Mat" : "Ge", i / 50 + 1, ":", i % 50 + 1,
                  is_new ? " jesus answered" : " moses spake");
    for (int word = 0; word < i % 7; ++word) out += is_new ? " verily" : " unto the people";
    out += ".\n";
  }
  return out;
}

std::vector<std::string> words(int processes, const std::string& program,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> out = {"launch", "--cpu", "--num_processes", std::to_string(processes),
                                  bin(program)};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::string run(const std::vector<std::string>& arguments, const std::string& program = bin("accel")) {
  AccelRun job(arguments, kOneThread, program);
  const auto code = job.finish();
  INFO(job.all());
  CHECK(code == 0);
  CHECK(job.nothing_left());
  return job.out();
}

// The numbers after `name` in the lines of a text, in order.
std::vector<double> numbers_after(const std::string& text, const std::string& name) {
  std::vector<double> out;
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    at += name.size();
    out.push_back(std::strtod(text.c_str() + at, nullptr));
  }
  return out;
}

void write_tokens(const TempDir& dir) {
  write_file(dir / "bible.txt", small_bible());
  run({"--text", dir / "bible.txt", "--references", "--output", dir / "bible.npy"}, bin("02_tokenize"));
}

}  // namespace

TEST_CASE("the language model learns, equally on 1 and 2 ranks and with accumulation") {
  const TempDir dir;
  write_tokens(dir);
  const auto losses = [&](int processes, const std::vector<std::string>& batch) {
    std::vector<std::string> arguments = {
        "--data", dir / "bible.npy", "--context", "16",          "--layers", "1",    "--width",
        "32",     "--steps",         "40",        "--log_every", "1",        "--lr", "0.01"};
    arguments.insert(arguments.end(), batch.begin(), batch.end());
    const std::string out = run(words(processes, "02_language_model", arguments));
    CHECK(numbers_after(out, " steps: ").size() >= 1);  // validation
    return numbers_after(out, " loss ");
  };
  const std::vector<double> want = losses(1, {"--batch_size", "16"});
  REQUIRE(want.size() == 40);
  CHECK(want.back() < want.front() / 2);
  for (const auto& got :
       {losses(2, {"--batch_size", "8"}), losses(2, {"--batch_size", "4", "--accumulation", "2"})}) {
    REQUIRE(got.size() == want.size());
    // Equal sums in another order differ in the last bits, and training lets that grow.
    for (size_t i = 0; i < 10; ++i) CHECK(std::abs(got[i] - want[i]) < 1e-4);
  }
}

TEST_CASE("the language model says what is wrong with its data") {
  const TempDir dir;
  write_tokens(dir);
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  for (const Case& test : {Case{{"--data", dir / "none.npy"}, "none.npy"},
                           Case{{"--data", dir / "bible.bytes.npy"}, "uint8 or uint16"},
                           Case{{"--data", dir / "bible.npy", "--context", "100000"}, "smaller --context"}}) {
    AccelRun job(words(2, "02_language_model", test.arguments), kOneThread);
    const auto code = job.finish();
    INFO(job.all());
    CHECK(code == 5);
    CHECK_THAT(job.err(), ContainsSubstring(test.message));
    CHECK(job.nothing_left());
  }
}

TEST_CASE("verses of different lengths are classified on 1, 2 and 3 ranks, with less padding by buckets") {
  const TempDir dir;
  write_file(dir / "bible.txt", small_bible());
  for (const int processes : {1, 2, 3}) {
    const std::string out = run(words(processes, "03_ragged",
                                      {"--data", dir / "bible.txt", "--epochs", "6", "--batch_size", "8",
                                       "--vocabulary", "50", "--width", "16", "--lr", "0.01"}));
    INFO(out);
    CHECK_THAT(out, ContainsSubstring("180 verses to train, 20 to test"));
    const auto plain = numbers_after(out, "padding: ");
    const auto buckets = numbers_after(out, "without buckets, ");
    REQUIRE((plain.size() == 1 && buckets.size() == 1));
    CHECK(buckets[0] < plain[0]);
    const auto loss = numbers_after(out, " loss ");
    REQUIRE(loss.size() == 6);
    CHECK(loss.back() < loss.front());
    CHECK(numbers_after(out, "test accuracy ").back() > 90);
  }
}

TEST_CASE("a missing text is an error that says where to get one") {
  AccelRun job(words(2, "03_ragged", {"--data", "/none/kjv.txt"}), kOneThread);
  CHECK(job.finish() == 5);
  CHECK_THAT(job.err(), ContainsSubstring("/none/kjv.txt") && ContainsSubstring("bible -f"));
  CHECK(job.nothing_left());
}
