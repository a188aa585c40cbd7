// Iterable data sets: our own sources, and the stream and chunk data sets of LibTorch.
#include <set>

#include "accelerate/data/iterable_dataset.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::ids;
using test::require;
using test::require_contains;

namespace {

// Words of a sentence; parts that are no tensors travel as well.
struct Word {
  int64_t number = 0;
  std::string text;
  at::Tensor letters;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(number, text, letters);
  }
};

struct Words {
  int64_t end = 7;
  int64_t at = 0;
  std::optional<Word> next() {
    if (at >= end) return std::nullopt;
    const int64_t number = at++;
    return Word{number, concat("w", number), torch::full({number % 3 + 1}, number)};
  }
  void reset() { at = 0; }
};

struct KeepAll {
  std::vector<Word> operator()(std::vector<Word> words) const { return words; }
};

struct Numbers {
  int64_t end = 10;
  int64_t fails_at = -1;
  int64_t at = 0;
  int64_t epoch = -1;
  int64_t skipped = 0;
  std::optional<at::Tensor> next() {
    if (at == fails_at) throw std::runtime_error("boom 42");
    return at >= end ? std::nullopt : std::optional(torch::tensor(at++ + 100 * epoch));
  }
  void reset(int64_t next_epoch) {
    at = 0;
    epoch = next_epoch;
  }
  void skip(int64_t count) { at += count; }
};

// LibTorch's way: chunks of examples, read by its own threads.
struct Chunks : torch::data::datasets::ChunkDataReader<torch::data::Example<>> {
  using BatchType = std::vector<torch::data::Example<>>;  // ChunkDataset asks for it under this name
  std::vector<torch::data::Example<>> read_chunk(size_t chunk) override {
    std::vector<torch::data::Example<>> out;
    for (int64_t i = 0; i < 5; ++i) {
      const auto number = static_cast<int64_t>(chunk) * 5 + i;
      out.push_back({torch::tensor(number), torch::tensor(-number)});
    }
    return out;
  }
  size_t chunk_count() override { return 4; }
  void reset() override {}
};

struct TorchStream : torch::data::datasets::StreamDataset<TorchStream, std::vector<at::Tensor>> {
  int64_t at = 0;
  std::vector<at::Tensor> get_batch(size_t count) override {
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < count && at < 6; ++i) out.push_back(torch::tensor(at++));
    return out;
  }
  std::optional<size_t> size() const override { return std::nullopt; }
};

AcceleratorOptions dispatching(std::optional<bool> dispatch) {
  AcceleratorOptions options;
  options.dataloader.dispatch_batches = dispatch;
  return options;
}

}  // namespace

TEST_CASE("by default the main process reads a stream and deals batches of any structure out") {
  std::atomic<int> reads = 0;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    struct Counted : Words {
      std::atomic<int>* reads = nullptr;
      std::optional<Word> next() {
        ++*reads;
        return Words::next();
      }
    };
    Counted source;
    source.reads = &reads;
    auto loader = accelerator.prepare(
        DataLoader(IterableDataset(source, NoTransform{}, KeepAll{}), {.batch_size = 2, .num_workers = 1}));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::vector<std::string> texts;
      for (auto& batch : loader) {
        for (const Word& word : batch) {
          require(word.letters.equal(torch::full({word.number % 3 + 1}, word.number)), "tensor");
          texts.push_back(word.text);
        }
      }
      // 7 words: a round of 4, then 3, completed with the epoch's first for two equal parts.
      require(texts == (accelerator.is_main_process() ? std::vector<std::string>{"w0", "w1", "w4", "w5"}
                                                      : std::vector<std::string>{"w2", "w3", "w6", "w0"}),
              "words " + join(texts, " "));
    }
  });
  CHECK(reads == 2 * 8);
}

TEST_CASE("a stream that breaks is reported by all ranks, also when the main process reads") {
  for (const bool dispatch : {true, false}) {
    for (const int64_t workers : {0, 2}) {
      test::run_ranks(
          2,
          [&](Accelerator& accelerator) {
            auto loader = accelerator.prepare(DataLoader(IterableDataset(Numbers{.end = 20, .fails_at = 9}),
                                                         {.batch_size = 2, .num_workers = workers}));
            int batches = 0;
            const std::string error = error_of([&] {
              for (auto& batch : loader) batches += batch.defined();
            });
            require_contains(error, "boom 42");
            require(batches <= 2, "batches before it");
          },
          dispatching(dispatch));
    }
  }
}

TEST_CASE("a transform that fails names the item of its batch") {
  test::run_ranks(1, [](Accelerator& accelerator) {
    const auto picky = [](at::Tensor item) {
      if (item.item<int64_t>() == 5) throw std::runtime_error("boom 42");
      return item;
    };
    auto loader =
        accelerator.prepare(DataLoader(IterableDataset(Numbers{.epoch = 0}, picky), {.batch_size = 4}));
    require_contains(error_of([&] {
                       for (auto& batch : loader) (void)batch;
                     }),
                     "item 1 of the batch: boom 42");
  });
}

TEST_CASE("a stream hears of its epoch, and going on in the middle skips what was seen") {
  for (const bool dispatch : {true, false}) {
    test::run_ranks(
        2,
        [](Accelerator& accelerator) {
          auto loader =
              accelerator.prepare(DataLoader(IterableDataset(Numbers{.end = 12}), {.batch_size = 2}));
          std::vector<std::vector<int64_t>> whole;
          LoaderState middle;
          for (int epoch = 0; epoch < 2; ++epoch) {
            whole.clear();
            for (auto& batch : loader) {
              whole.push_back(ids(batch));
              if (whole.size() == 2) middle = loader.state();
            }
          }
          require(whole.size() == 3 && whole[0][0] >= 100 && middle.epoch == 1 && middle.samples_seen == 8,
                  "second epoch");
          loader.load_state(middle);
          std::vector<std::vector<int64_t>> rest;
          for (auto& batch : loader) rest.push_back(ids(batch));
          require(rest.size() == 1 && rest[0] == whole[2], "the rest");
          require_contains(error_of([&] { (void)loader.size(); }), "not known before its end");
        },
        dispatching(dispatch));
  }
}

TEST_CASE("LibTorch's chunk and stream data sets work, and one loop gives every sample once") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    namespace td = torch::data;
    using Chunked =
        td::datasets::ChunkDataset<Chunks, td::samplers::SequentialSampler, td::samplers::SequentialSampler>;
    const auto chunks = td::datasets::make_shared_dataset<Chunked>(
        Chunks{}, td::samplers::SequentialSampler(4), td::samplers::SequentialSampler(5),
        td::datasets::ChunkDatasetOptions(/*preloader_count=*/1, /*batch_size=*/4));
    auto loader = accelerator.prepare(DataLoader(
        IterableDataset(chunks, NoTransform{}, StackCollate{}, /*read_size=*/4), {.batch_size = 3}));
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::multiset<int64_t> seen;
      for (auto& batch : loader) {
        require(batch.data.equal(-batch.target), "pairs");
        for (const int64_t id : ids(accelerator.gather_for_metrics(batch.data))) seen.insert(id);
      }
      require(seen.size() == 20 && std::set<int64_t>(seen.begin(), seen.end()).size() == 20, "chunks");
    }
    auto stream = accelerator.prepare(DataLoader(IterableDataset(TorchStream{}), {.batch_size = 1}));
    std::vector<int64_t> seen;
    for (auto& batch : stream) {
      for (const int64_t id : ids(accelerator.gather_for_metrics(batch))) seen.push_back(id);
    }
    require(seen == std::vector<int64_t>{0, 1, 2, 3, 4, 5}, "stream");
  });
}

TEST_CASE("a source that shards itself is not sharded again") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    // Rank r's own numbers begin at 1000 r.
    Numbers source{.end = 3};
    source.epoch = 0;
    auto loader = accelerator.prepare(
        DataLoader(IterableDataset(source, [offset = 1000 * accelerator.process_index()](
                                               const at::Tensor& item) { return item + offset; }),
                   {.batch_size = 2, .already_sharded = true}));
    std::vector<int64_t> seen;
    for (auto& batch : loader) {
      for (const int64_t id : ids(batch)) seen.push_back(id);
    }
    const int64_t base = 1000 * accelerator.process_index();
    require(seen == std::vector<int64_t>{base, base + 1, base + 2}, "own part");
  });
}

TEST_CASE("the last accumulation window of a stream is divided by its real size") {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = 3;
  test::run_ranks(
      2,
      [](Accelerator& accelerator) {
        auto net = torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false));
        auto sgd = torch::optim::SGD(net->parameters(), 1.0);
        auto [model, optimizer, loader] =
            accelerator.prepare(net, sgd, DataLoader(IterableDataset(Numbers{.end = 8}), {.batch_size = 1}));
        std::vector<double> changes;
        double before = net->weight.item<double>();
        for (auto& batch : loader) {
          auto scope = accelerator.accumulate(model);
          optimizer.zero_grad();
          accelerator.backward(model->forward(torch::ones({1, 1})).sum() + 0 * batch.sum());
          optimizer.step();
          const double after = net->weight.item<double>();
          if (accelerator.sync_gradients()) changes.push_back(before - after);
          before = after;
        }
        // 4 batches a rank: a window of 3 and one of 1, each with a mean gradient of 1.
        require(changes.size() == 2 && std::abs(changes[0] - 1) < 1e-6 && std::abs(changes[1] - 1) < 1e-6,
                "changes");
      },
      options);
}

TEST_CASE("shuffle or a sampler for a stream is an error") {
  test::run_ranks(1, [](Accelerator& accelerator) {
    require_contains(
        error_of([&] { accelerator.prepare(DataLoader(IterableDataset(Numbers{}), {.shuffle = true})); }),
        "Shuffle in the source");
  });
}

TEST_CASE("batches that can't be written as bytes are an error before any is read") {
  test::run_ranks(2, [](Accelerator& accelerator) {
    struct Opaque {
      std::unique_ptr<int> value;
    };
    const auto opaque = [](const std::vector<at::Tensor>&) { return std::vector<std::shared_ptr<Opaque>>(); };
    auto loader =
        accelerator.prepare(DataLoader(IterableDataset(Numbers{}, NoTransform{}, opaque), {.batch_size = 1}));
    require_contains(error_of([&] {
                       for (auto& batch : loader) (void)batch;
                     }),
                     "dispatch_batches = false");
  });
}
