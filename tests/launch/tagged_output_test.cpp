// Output of mpirun's ranks, taken apart.
#include "accelerate/launch/tagged_output.h"

#include "accelerate/core/strings.h"
#include "test_support.h"

using accelerate::concat;
using accelerate::detail::rank_named_by_mpirun;
using accelerate::detail::TaggedOutput;

namespace {

// "0:text" for rank 0, "-:text" for nobody; neighbours of one rank joined.
std::string taken_apart(const std::string& text, size_t bytes_at_once) {
  std::string out;
  std::optional<std::string> writer;
  TaggedOutput tagged([&](std::optional<int> rank, std::string_view piece) {
    const std::string name = rank ? std::to_string(*rank) : "-";
    if (writer != name) out += concat("{", name, "}");
    writer = name;
    out += piece;
  });
  for (size_t at = 0; at < text.size(); at += bytes_at_once) tagged.feed(text.substr(at, bytes_at_once));
  tagged.finish();
  return out;
}

}  // namespace

TEST_CASE("tags tell whose a piece is, however it was cut", "[launch]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[1,0]<stdout>:a\n[1,1]<stdout>:b\n", "{0}a\n{1}b\n"},
      {"[1,0]<stderr>:no end[1,12]<stderr>:b\n", "{0}no end{12}b\n"},
      {"mpirun noticed that\n[1,3]<stddiag>:x\nrank 1\n", "{-}mpirun noticed that\n{3}x\n{-}rank 1\n"},
      {"[1,0]<stdout>:[1] [1,2] [1,2]<stdin>:[\n", "{0}[1] [1,2] [1,2]<stdin>:[\n"},
      {"[1,0]<stdout>:tail [1,", "{0}tail [1,"},
      {"[1,0]<stdout>:\n[1,0]<stdout>:\n", "{0}\n\n"},
      {"[1,99999999999]<stdout>:x", "{-}[1,99999999999]<stdout>:x"},
      {"", ""}};
  for (const auto& [text, want] : cases) {
    for (const size_t bytes : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
      INFO(bytes << " bytes of " << text);
      CHECK(taken_apart(text, bytes) == want);
    }
  }
}

TEST_CASE("mpirun's last words name a rank", "[launch]") {
  // The sentences of Open MPI 4.1.
  CHECK(rank_named_by_mpirun(
            "The first process to do so was:\n\n  Process name: [[21346,1],13]\n  Exit code:    3\n") == 13);
  CHECK(rank_named_by_mpirun(
            "mpirun noticed that process rank 2 with PID 0 on node a exited on signal 9 (Killed).\n") == 2);
  CHECK_FALSE(rank_named_by_mpirun(""));
  CHECK_FALSE(rank_named_by_mpirun("Process name: [[21346"));
  CHECK_FALSE(rank_named_by_mpirun("process rank x with"));
}
