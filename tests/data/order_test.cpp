// The order of samples equals the real Accelerate's: tests/parity/sampler_indices.json was written by it
// (sampler_indices_gen.py beside it).
#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/data/batch_shard.h"
#include "accelerate/data/sampler.h"
#include "support/thread_ranks.h"
#include "test_support.h"

using namespace accelerate;
using nlohmann::json;
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
                    const int64_t* ids = batch.data.template const_data_ptr<int64_t>();
                    seen.emplace_back(ids, ids + batch.data.numel());
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
