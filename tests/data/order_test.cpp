// The order of samples equals the real Accelerate's: tests/parity/sampler_indices.json was written by it
// (sampler_indices_gen.py beside it).
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "accelerate/data/batch_shard.h"
#include "accelerate/data/epoch_plan.h"
#include "accelerate/data/sampler.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using nlohmann::json;
using test::ids;
using test::require;
using Batches = std::vector<std::vector<int64_t>>;

namespace {

const json& golden() {
  static const json data = json::parse(
      std::ifstream(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/sampler_indices.json"));
  return data;
}

Batches all_batches(const BatchShard& shard) {
  Batches out;
  for (int64_t k = 0; k < shard.num_batches(); ++k) out.push_back(shard.positions(k));
  return out;
}

// A data set whose sample i is the number i.
SharedMemoryDataset numbers(Accelerator& accelerator, int64_t n) {
  return SharedMemoryDataset::create(accelerator, [n] { return torch::arange(n); });
}

// A stream of 0, 1, ..., n-1.
struct Counter {
  int64_t end = 0;
  int64_t at = 0;
  std::optional<at::Tensor> next() {
    if (at >= end) return std::nullopt;
    return torch::tensor(at++);
  }
  void reset() { at = 0; }
};

// The entries of a golden section by world size.
std::map<int, std::vector<const json*>> by_world(const char* section) {
  std::map<int, std::vector<const json*>> out;
  for (const json& entry : golden().at(section)) out[entry.at("world")].push_back(&entry);
  return out;
}

// Runs `check(accelerator, entry)` for all entries of a section on as many threads as ranks as each says;
// returns how many ranks ran how many entries.
size_t for_all_entries(const char* section, const std::function<void(Accelerator&, const json&)>& check) {
  std::atomic<size_t> runs = 0;
  for (const auto& [world, entries] : by_world(section)) {
    test::run_ranks(world, [&, &entries = entries](Accelerator& accelerator) {
      for (const json* entry : entries) {
        try {
          check(accelerator, *entry);
        } catch (const std::exception& error) {
          throw std::runtime_error(
              concat("rank ", accelerator.process_index(), ": ", entry->dump(), ": ", error.what()));
        }
        ++runs;
      }
    });
  }
  return runs;
}

// One epoch of what a golden entry of the sections dispatch and metrics says of a loader.
struct Epoch {
  Batches batches;
  Batches gathered;
  std::vector<int64_t> ends;
  std::vector<int64_t> remainders;
};

template <class Loader>
Epoch run_epoch(Accelerator& accelerator, Loader& loader) {
  Epoch out;
  for (auto& batch : loader) {
    at::Tensor numbers;
    for_each_tensor(batch, [&](at::Tensor& tensor) {
      if (tensor.defined()) numbers = tensor;
    });
    out.batches.push_back(ids(numbers));
    out.ends.push_back(accelerator.end_of_dataloader());
    out.remainders.push_back(accelerator.remainder());
    out.gathered.push_back(ids(accelerator.gather_for_metrics(numbers)));
  }
  return out;
}

// For another Accelerator of the same rank over the same group: the options of one are fixed.
AcceleratorOptions options_of(const Accelerator& accelerator) {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = accelerator.context().topology;
  options.communicator = accelerator.context().communicator;
  options.logger = accelerator.context().logger;
  return options;
}

// An accelerator's loader for a golden entry.
Epoch run_entry(Accelerator& accelerator, const json& entry) {
  AcceleratorOptions options = options_of(accelerator);
  options.dataloader = {.split_batches = entry.at("split"),
                        .even_batches = entry.value("even", true),
                        .dispatch_batches = entry.at("dispatch").get<bool>()};
  Accelerator inner(options);
  const DataLoaderOptions loader_options{.batch_size = entry.at("batch"), .drop_last = entry.at("drop_last")};
  if (entry.value("iterable", false)) {
    auto loader = inner.prepare(DataLoader(IterableDataset(Counter{.end = entry.at("n")}), loader_options));
    return run_epoch(inner, loader);
  }
  auto loader = inner.prepare(DataLoader(numbers(accelerator, entry.at("n")), loader_options));
  require(loader.size() == (entry.contains("skip") ? loader.size() : entry.at("len").get<int64_t>()), "len");
  if (entry.contains("skip")) loader = inner.skip_first_batches(loader, entry.at("skip"));
  return run_epoch(inner, loader);
}

void check_entry(Accelerator& accelerator, const json& entry) {
  const Epoch epoch = run_entry(accelerator, entry);
  const auto rank = static_cast<size_t>(accelerator.process_index());
  require(epoch.batches == entry.at("ranks")[rank].get<Batches>(), "got " + json(epoch.batches).dump());
  require(epoch.ends == entry.at("end").get<std::vector<int64_t>>(), "end " + json(epoch.ends).dump());
  if (epoch.batches.empty()) return;
  // HF says -1 where it does not know, and the whole round where none is a repeat; we say 0 for both.
  int64_t wanted = std::max<int64_t>(0, entry.at("remainder").back());
  int64_t round = 0;
  for (const json& batches : entry.at("ranks")) round += static_cast<int64_t>(batches.back().size());
  if (wanted == round) wanted = 0;
  if (!entry.contains("skip")) require(epoch.remainders.back() == wanted, "remainder");
  if (!entry.contains("gathered")) return;
  auto gathered = entry.at("gathered").get<Batches>();
  // After skip_first_batches HF forgets how many samples of the last round are repeats; we leave them out.
  if (entry.contains("skip")) gathered.back() = {6, 7, 8, 9};
  if (entry.contains("skip") && entry.at("world") == 2) gathered.back() = {8, 9};
  require(epoch.gathered == gathered, "gathered " + json(epoch.gathered).dump());
}

}  // namespace

TEST_CASE("every case of the golden section shard") {
  size_t cases = 0;
  for (const json& entry : golden().at("shard")) {
    for (int64_t rank = 0; rank < entry.at("world"); ++rank) {
      const BatchShard shard{.num_positions = entry.at("n"),
                             .batch_size = entry.at("batch"),
                             .world_size = entry.at("world"),
                             .rank = rank,
                             .split_batches = entry.at("split"),
                             .even_batches = entry.at("even"),
                             .drop_last = entry.at("drop_last")};
      INFO(entry.dump() << " rank " << rank);
      REQUIRE(all_batches(shard) == entry.at("ranks")[static_cast<size_t>(rank)].get<Batches>());
    }
    ++cases;
  }
  CHECK(cases == 1296);
}

TEST_CASE("every case of the golden section shard_var") {
  size_t cases = 0;
  for (const json& entry : golden().at("shard_var")) {
    for (int64_t rank = 0; rank < entry.at("world"); ++rank) {
      INFO(entry.dump() << " rank " << rank);
      REQUIRE(shard_batches(entry.at("source").get<Batches>(), entry.at("world"), rank, entry.at("even")) ==
              entry.at("ranks")[static_cast<size_t>(rank)].get<Batches>());
    }
    ++cases;
  }
  CHECK(cases == 24);
}

TEST_CASE("every case of the golden section seedable") {
  size_t cases = 0;
  for (const json& entry : golden().at("seedable")) {
    const RandomSampler sampler(
        entry.at("n"), entry.at("seed").get<uint64_t>(), entry.value("replacement", false),
        entry.contains("num_samples") ? std::optional<int64_t>(entry.at("num_samples")) : std::nullopt);
    INFO(entry.dump());
    REQUIRE(sampler.order(entry.at("epoch")) == entry.at("order").get<std::vector<int64_t>>());
    ++cases;
  }
  CHECK(cases == 95);
}

TEST_CASE("every case of the golden section prepared, through prepare() on threads as ranks") {
  std::map<int, std::vector<const json*>> by_world;
  for (const json& entry : golden().at("prepared")) by_world[entry.at("world")].push_back(&entry);
  std::atomic<size_t> rank_cases = 0;
  size_t expected_rank_cases = 0;
  for (const auto& [world, entries] : by_world) {
    expected_rank_cases += entries.size() * static_cast<size_t>(world);
    for (const bool split : {false, true}) {
      for (const bool even : {false, true}) {
        AcceleratorOptions options;
        options.dataloader = {.split_batches = split, .even_batches = even};
        test::run_ranks(
            world,
            [&, &entries = entries](Accelerator& accelerator) {
              for (const json* entry : entries) {
                if (entry->at("split") != split || entry->at("even") != even) continue;
                auto loader = accelerator.prepare(DataLoader(numbers(accelerator, entry->at("n")),
                                                             {.batch_size = entry->at("batch"),
                                                              .shuffle = true,
                                                              .drop_last = entry->at("drop_last"),
                                                              .seed = entry->at("seed").get<uint64_t>()}));
                for (const json& epoch : entry->at("epochs")) {
                  Batches seen;
                  for (auto& batch : loader) {
                    seen.push_back(ids(batch.data));
                  }
                  const auto want = epoch[static_cast<size_t>(accelerator.process_index())].get<Batches>();
                  if (seen != want || loader.size() != static_cast<int64_t>(want.size())) {
                    throw std::runtime_error(concat("rank ", accelerator.process_index(), ": ", entry->dump(),
                                                    " got ", json(seen).dump()));
                  }
                }
                ++rank_cases;
              }
            },
            options);
      }
    }
  }
  CHECK(rank_cases == expected_rank_cases);
  CHECK(golden().at("prepared").size() == 128);
}

TEST_CASE("every row of even_batches.tsv: batches of each rank and rows left after gather_for_metrics") {
  std::ifstream file(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/even_batches.tsv");
  std::string line;
  std::getline(file, line);
  REQUIRE(line.find("n\tbatch\tworld") == 0);
  size_t rows = 0;
  size_t with_count = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    BatchShard shard;
    int split = 0, even = 0, drop_last = 0;
    std::string lengths, batches;
    int64_t remainder = 0, rows_seen = 0;
    fields >> shard.num_positions >> shard.batch_size >> shard.world_size >> split >> even >> drop_last;
    std::getline(fields >> std::ws, lengths, '\t');
    std::getline(fields, batches, '\t');
    REQUIRE(fields >> remainder);
    const bool counted = static_cast<bool>(fields >> rows_seen);  // empty where batches can't be gathered
    shard.split_batches = split != 0;
    shard.even_batches = even != 0;
    shard.drop_last = drop_last != 0;
    INFO(line);
    int64_t seen = 0;
    int64_t last_round = 0;
    for (int64_t rank = 0; rank < shard.world_size; ++rank) {
      shard.rank = rank;
      const Batches got = all_batches(shard);
      REQUIRE(got == json::parse(batches)[static_cast<size_t>(rank)].get<Batches>());
      // Without even_batches HF counts a batch on ranks that get none; we say what a loop gives.
      if (shard.even_batches)
        REQUIRE(shard.num_batches() == json::parse(lengths)[static_cast<size_t>(rank)].get<int64_t>());
      for (const auto& batch : got) seen += static_cast<int64_t>(batch.size());
      if (!got.empty()) last_round += static_cast<int64_t>(got.back().size());
    }
    std::vector<int64_t> order(static_cast<size_t>(shard.num_positions));
    std::iota(order.begin(), order.end(), 0);
    const auto plan = accelerate::detail::plan_epoch(shard, order);
    const int64_t rounds = plan->num_batches(0);
    const int64_t real = rounds > 0 ? plan->remainder(rounds - 1) : 0;
    const int64_t repeats = real > 0 ? last_round - real : 0;
    if (counted) REQUIRE(seen - repeats == rows_seen);
    with_count += counted;
    ++rows;
  }
  CHECK(rows == 840);
  CHECK(with_count > 400);
}

TEST_CASE("every case of the golden section iter_shard, from a stream that every rank reads") {
  const size_t runs = for_all_entries("iter_shard", [](Accelerator& accelerator, const json& entry) {
    AcceleratorOptions options = options_of(accelerator);
    options.dataloader = {.split_batches = entry.at("split"), .dispatch_batches = false};
    Accelerator inner(options);
    auto loader =
        inner.prepare(DataLoader(IterableDataset(Counter{.end = entry.at("n")}),
                                 {.batch_size = entry.at("batch"), .drop_last = entry.at("drop_last")}));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<int64_t> seen;
      for (auto& batch : loader) {
        for (const int64_t id : ids(batch)) seen.push_back(id);
      }
      require(
          seen ==
              entry.at("ranks")[static_cast<size_t>(accelerator.process_index())].get<std::vector<int64_t>>(),
          "got " + json(seen).dump());
    }
  });
  CHECK(runs == 60 * 2 + 36 * 3 + 48 * 4);
}

TEST_CASE("every case of the golden section gen_shuffle: a generator that goes on from epoch to epoch") {
  const size_t runs = for_all_entries("gen_shuffle", [](Accelerator& accelerator, const json& entry) {
    AcceleratorOptions options = options_of(accelerator);
    options.dataloader = {.use_seedable_sampler = false};
    Accelerator inner(options);
    auto loader = inner.prepare(DataLoader(
        numbers(accelerator, entry.at("n")),
        {.batch_size = entry.at("batch"), .shuffle = true, .seed = entry.at("seed").get<uint64_t>()}));
    for (const json& epoch : entry.at("epochs")) {
      Batches seen;
      for (auto& batch : loader) seen.push_back(ids(batch.data));
      require(seen == epoch[static_cast<size_t>(accelerator.process_index())].get<Batches>(),
              "got " + json(seen).dump());
    }
  });
  CHECK(runs == 1 + 2 + 2 + 3);
}

TEST_CASE("every case of the golden section dispatch: the main process reads for all ranks") {
  CHECK(for_all_entries("dispatch", check_entry) == 48 * 2 + 36 * 3);
}

TEST_CASE("every case of the golden section metrics, with end_of_dataloader and remainder") {
  size_t wanted = 0;
  for (const auto& [world, entries] : by_world("metrics"))
    wanted += static_cast<size_t>(world) * entries.size();
  CHECK(for_all_entries("metrics", check_entry) == wanted);
  CHECK(golden().at("metrics").size() == 88);
}

TEST_CASE("every case of the golden section split_between") {
  const size_t runs = for_all_entries("split_between", [](Accelerator& accelerator, const json& entry) {
    std::vector<int64_t> all(entry.at("n").get<size_t>());
    std::iota(all.begin(), all.end(), 0);
    const auto want =
        entry.at("ranks")[static_cast<size_t>(accelerator.process_index())].get<std::vector<int64_t>>();
    const bool pad = entry.at("pad");
    require(accelerator.split_between_processes(all, pad) == want, "vector");
    const at::Tensor rows = torch::arange(entry.at("n").get<int64_t>()).reshape({-1, 1});
    require(ids(accelerator.split_between_processes(rows, pad)) == want, "tensor");
    std::map<std::string, std::vector<int64_t>> named = {{"a", all}, {"b", all}};
    require(accelerator.split_between_processes(named, pad).at("b") == want, "map");
    named["b"].push_back(1);
    test::require_contains(test::error_of([&] { (void)accelerator.split_between_processes(named, pad); }),
                           "value 'b'");
  });
  CHECK(runs == 14 * (2 + 3));
}
