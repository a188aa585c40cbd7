// Ragged columns, records of user types, values as bytes, and the read-only memory below them.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "accelerate/comm/serializer.h"
#include "accelerate/core/read_only_memory.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::ids;
using test::require;
using test::require_contains;

namespace {

struct Trade {
  std::string symbol;
  std::vector<double> prices;
  std::optional<int64_t> volume;
  torch::Tensor book;
  bool operator==(const Trade& other) const {
    return symbol == other.symbol && prices == other.prices && volume == other.volume &&
           book.equal(other.book);
  }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(symbol, prices, volume, book);
  }
};

Trade trade(int64_t i) {
  return {.symbol = concat("S", i),
          .prices = std::vector<double>(static_cast<size_t>(i % 3), 0.5 * static_cast<double>(i)),
          .volume = i % 2 == 0 ? std::optional<int64_t>(i) : std::nullopt,
          .book = torch::full({i % 4, 2}, i)};
}

template <class T>
T round_trip(const T& value) {
  ByteWriter writer;
  save_value(writer, value);
  const std::string bytes = writer.take();
  ByteReader reader(std::as_bytes(std::span(bytes)));
  T out = load_value<T>(reader);
  require(reader.left() == 0, "all bytes read");
  return out;
}

// What a child process that runs `action` wrote to standard error, and how it ended.
std::pair<std::string, int> in_child(const std::function<void()>& action) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::signal(SIGSEGV, SIG_DFL);  // Catch has a handler of its own
    action();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {text, status};
}

}  // namespace

TEST_CASE("rows of different lengths are one copy for all ranks, padded to the longest of each batch") {
  test::run_ranks(3, [](Accelerator& accelerator) {
    const auto data = SharedMemoryDataset::create(accelerator, [] {
      std::vector<at::Tensor> tokens, points;
      for (int64_t i = 0; i < 12; ++i) {
        tokens.push_back(torch::full({(i * 5) % 7}, i, torch::kInt));
        points.push_back(torch::full({i % 3 + 1, 2}, 0.5 * static_cast<double>(i), torch::kDouble));
      }
      return ColumnDict{{"data", Ragged::from_rows(tokens, {.value = -1, .multiple_of = 4})},
                        {"points", Ragged::from_rows(points, {.value = NAN})},
                        {"target", torch::arange(12)}};
    });
    require(data.size() == 12, "size");
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 2, .shuffle = true, .seed = 3}));
    int64_t samples = 0;
    for (auto& batch : loader) {
      const auto rows = ids(batch.target);
      const auto lengths = ids(batch["data_lengths"]);
      int64_t longest = 0;
      for (size_t r = 0; r < rows.size(); ++r) {
        require(lengths[r] == (rows[r] * 5) % 7, "length");
        longest = std::max(longest, lengths[r]);
      }
      require(batch.data.size(1) == (longest + 3) / 4 * 4, "longest, in steps of 4");
      for (size_t r = 0; r < rows.size(); ++r) {
        const at::Tensor row = batch.data[static_cast<int64_t>(r)];
        require((row.narrow(0, 0, lengths[r]) == rows[r]).all().item<bool>(), "tokens");
        require((row.slice(0, lengths[r]) == -1).all().item<bool>(), "padding");
        const at::Tensor points = batch["points"][static_cast<int64_t>(r)];
        const int64_t count = rows[r] % 3 + 1;
        require((points.slice(0, 0, count) == 0.5 * static_cast<double>(rows[r])).all().item<bool>(),
                "points");
        require(points.slice(0, count).isnan().all().item<bool>(), "padding with NaN");
        ++samples;
      }
    }
    require(samples == 4, "all batches");
    const Batch sample = data.get(5);
    require(sample.data.equal(torch::full({4}, 5, torch::kInt)) && sample.target.dim() == 0, "one sample");
    require_contains(error_of([&] { (void)data.tensor("data"); }), "Use ragged()");
    require_contains(error_of([&] { (void)data.ragged("target"); }), "Use tensor()");
    require_contains(error_of([&] { (void)data.get(12); }), "expected 0 to 11, got 12");
  });
}

TEST_CASE("ragged columns that do not fit are errors that say what") {
  CHECK_THAT(error_of([] { Ragged::from_rows({}); }), ContainsSubstring("at least one row"));
  CHECK_THAT(error_of([] {
               Ragged::from_rows({torch::ones({2}), torch::ones({2, 2})});
             }),
             ContainsSubstring("row 1"));
  CHECK_THAT(error_of([] {
               Ragged::from_rows({torch::ones({2}), torch::ones({2}, torch::kInt)});
             }),
             ContainsSubstring("dtype"));
  const auto check = [](const at::Tensor& values, const at::Tensor& offsets) {
    return error_of([&] { Ragged{.values = values, .offsets = offsets}.check("tokens"); });
  };
  CHECK(check(torch::ones({3}), torch::tensor({0, 1, 3})) == "no error");
  CHECK_THAT(check(torch::ones({3}), torch::tensor({0, 2, 1, 3})), ContainsSubstring("rise from 0 to 3"));
  CHECK_THAT(check(torch::ones({3}), torch::tensor({0, 4})), ContainsSubstring("rise from 0 to 3"));
  CHECK_THAT(check(torch::ones({3}), torch::tensor({0.0, 3.0})), ContainsSubstring("int64 offsets"));
  test::run_ranks(2, [](Accelerator& accelerator) {
    require_contains(error_of([&] {
                       SharedMemoryDataset::create(accelerator, [] {
                         return ColumnDict{{"a", Ragged::from_strings({"x", "yz"})}, {"b", torch::ones({3})}};
                       });
                     }),
                     "expected a dense tensor of 2 rows");
  });
}

TEST_CASE("records of a user's type come back whole, in shared memory, in batches and through transforms") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    const auto data = SharedRecordDataset<Trade>::create(accelerator, [] {
      std::vector<Trade> trades;
      for (int64_t i = 0; i < 9; ++i) trades.push_back(trade(i));
      return trades;
    });
    require(data.size() == 9, "size");
    for (int64_t i = 0; i < 9; ++i) require(data.get(static_cast<size_t>(i)) == trade(i), "record");
    auto loader = accelerator.prepare(DataLoader(data, {.batch_size = 3}));
    size_t batches = 0;
    for (auto& batch : loader) {
      const auto first =
          static_cast<int64_t>(batches * 6 + 3 * static_cast<size_t>(accelerator.process_index()));
      for (size_t i = 0; i < 3; ++i)
        require(batch[i] == trade((first + static_cast<int64_t>(i)) % 9), "batch");
      ++batches;
    }
    require(batches == 2, "batches");
    const auto volume = [](const Trade& record) { return torch::tensor(record.volume.value_or(-1)); };
    auto tensors =
        accelerator.prepare(DataLoader(ItemDataset(data, volume), {.batch_size = 9, .num_workers = 2}));
    for (auto& batch : tensors) {
      require(ids(batch) == std::vector<int64_t>{0, -1, 2, -1, 4, -1, 6, -1, 8}, "as tensors");
    }
  });
}

TEST_CASE("values survive being bytes") {
  CHECK(round_trip<int>(7) == 7);
  CHECK(round_trip<std::string>("grün") == "grün");
  CHECK(round_trip<std::vector<bool>>({true, false}) == std::vector<bool>{true, false});
  const std::map<std::string, std::vector<std::pair<int, std::string>>> nested = {{"a", {{1, "x"}}},
                                                                                  {"b", {}}};
  CHECK(round_trip(nested) == nested);
  const std::tuple<std::optional<std::string>, std::array<std::string, 2>> parts{"q", {"r", "s"}};
  CHECK(round_trip(parts) == parts);
  for (const auto dtype : {torch::kBFloat16, torch::kBool, torch::kLong, torch::kComplexFloat}) {
    const auto tensor = torch::arange(6).reshape({2, 3}).t().to(dtype);
    CHECK(round_trip(tensor).equal(tensor));
  }
  CHECK_FALSE(round_trip(torch::Tensor()).defined());
  CHECK(round_trip(torch::empty({0, 3})).sizes() == at::IntArrayRef({0, 3}));
  const auto example = round_trip(torch::data::Example<>{torch::ones({2}), torch::zeros({1})});
  CHECK((example.data.equal(torch::ones({2})) && example.target.equal(torch::zeros({1}))));
  ByteWriter writer;
  save_value<int>(writer, 1);
  const std::string bytes = writer.take();
  ByteReader reader(std::as_bytes(std::span(bytes)));
  CHECK_THAT(error_of([&] { load_value<std::string>(reader); }), ContainsSubstring("8 more bytes"));
  Trade record = trade(5);
  CHECK(collect_tensors(record).size() == 1);  // the same member shows its tensors
}

TEST_CASE("samples side by side are a view, others a copy, and copy_batches copies all") {
  for (const int world : {1, 2}) {
    test::run_ranks(world, [](Accelerator& accelerator) {
      const auto data = SharedMemoryDataset::create(accelerator, [] {
        return torch::arange(24).reshape({12, 2});
      });
      const auto* begin = static_cast<const int64_t*>(data.tensor("data").const_data_ptr());
      const auto inside = [&](const at::Tensor& tensor) {
        const auto* at = static_cast<const int64_t*>(tensor.const_data_ptr());
        return at >= begin && at < begin + 24;
      };
      const std::vector<int64_t> run = {3, 4, 5}, jump = {3, 5};
      require(inside(data.get_batch(run).data), "a run is a view");
      require(data.get_batch(run).data.equal(data.tensor("data").narrow(0, 3, 3)), "of the right rows");
      require(!inside(data.get_batch(jump).data), "others are copies");
      auto copies = accelerator.prepare(DataLoader(data, {.batch_size = 3, .copy_batches = true}));
      for (auto& batch : copies) {
        require(!inside(batch.data), "copy_batches");
        batch.data.zero_();
      }
      require(data.tensor("data")[3][1].item<int64_t>() == 7, "the shared copy is untouched");
    });
  }
}

TEST_CASE("a write to a shared data set ends the process with a line that says why") {
  const auto [text, status] = in_child([] {
    AcceleratorOptions options;
    options.environment = EnvVars();
    options.topology = Topology{.job_id = "alone"};
    const Accelerator accelerator(options);
    const auto data = SharedMemoryDataset::create(accelerator, [] { return torch::ones({8}); });
    const std::vector<int64_t> run = {0, 1};
    data.get_batch(run).data.data_ptr<float>()[0] = 2;
  });
  CHECK_THAT(text, ContainsSubstring("a write to the memory of a shared data set"));
  CHECK_THAT(text, ContainsSubstring("copy_batches"));
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

TEST_CASE("memory is known as read-only only while it is") {
  const int inside[4] = {};
  CHECK_FALSE(ReadOnlyMemory::contains(inside));
  ReadOnlyMemory::add(inside, sizeof inside);
  CHECK(ReadOnlyMemory::contains(inside + 3));
  CHECK_FALSE(ReadOnlyMemory::contains(inside + 4));
  ReadOnlyMemory::remove(inside);
  CHECK_FALSE(ReadOnlyMemory::contains(inside));
}
