// Tells the Old Testament from the New by a verse's words: sequences of different lengths, padded batches,
// masks.
//
//   bible -f gen1:1-rev22:21 > kjv.txt
//   accel launch --cpu --num_processes 2 ./03_ragged --data kjv.txt
//
// Verses have 2 to 90 words. A batch is filled up to its longest verse, so batches of verses of similar
// length (BucketByLengthSampler) waste little; the program says how little.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"

struct Options {
  std::string data = "kjv.txt";
  int64_t epochs = 2;
  int64_t batch_size = 32;
  int64_t vocabulary = 4000;
  int64_t width = 64;
  double lr = 1e-3;
  int64_t seed = 42;
  bool buckets = true;
};

// ---- Data -------------------------------------------------------------------------------------------------

struct Verse {
  std::vector<std::string> words;
  int64_t label = 0;  // 1: New Testament
};

bool is_new_testament(const std::string& book) {
  constexpr std::array kBooks = {"Mat", "Mark", "Luke", "John", "Acts", "Rom",  "1Cor", "2Cor",  "Gal",
                                 "Eph", "Phi",  "Col",  "1Th",  "2Th",  "1Tim", "2Tim", "Titus", "Phmn",
                                 "Heb", "Jas",  "1Pet", "2Pet", "1Jn",  "2Jn",  "3Jn",  "Jude",  "Rev"};
  return std::find(kBooks.begin(), kBooks.end(), book) != kBooks.end();
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      out.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!out.back().empty()) {
      out.emplace_back();
    }
  }
  if (out.back().empty()) out.pop_back();
  return out;
}

// "Ge1:1 In the beginning ..." -> book "Ge", and the words.
Verse parse_verse(const std::string& line, size_t number) {
  const size_t space = line.find(' ');
  const size_t colon = line.find(':');
  const size_t chapter = line.find_first_of("0123456789", 1);  // "1Sm1:1": the first digit may be the book's
  const std::vector<std::string> words = words_of(space == std::string::npos ? "" : line.substr(space));
  if (words.empty() || colon >= space || chapter >= colon) {
    throw accelerate::DataError({.what = accelerate::concat("line ", number, " of the text"),
                                 .expected = "a reference and words, as 'Ge1:1 In the beginning'",
                                 .got = "'" + line.substr(0, 30) + "'",
                                 .hint = "bible -f gen1:1-rev22:21 prints such lines."});
  }
  return {.words = words, .label = is_new_testament(line.substr(0, chapter))};
}

std::vector<Verse> read_verses(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw accelerate::DataError(
        {.what = "opening " + path,
         .got = accelerate::errno_text(errno),
         .hint = "apt-get install bible-kjv, then: bible -f gen1:1-rev22:21 > kjv.txt"});
  }
  std::vector<Verse> out;
  for (std::string line; std::getline(file, line);) out.push_back(parse_verse(line, out.size() + 1));
  if (out.size() < 10)
    throw accelerate::DataError({.what = path, .expected = "10 verses", .got = std::to_string(out.size())});
  return out;
}

// 0 fills up, 1 is any rare word, the others are the most frequent words of the training part.
constexpr int64_t kRare = 1;
using Vocabulary = std::map<std::string, int64_t>;

Vocabulary most_frequent(const std::vector<Verse>& verses, int64_t size) {
  std::map<std::string, int64_t> counts;
  for (const Verse& verse : verses) {
    for (const std::string& word : verse.words) ++counts[word];
  }
  std::vector<std::pair<int64_t, std::string>> ranking;
  for (const auto& [word, count] : counts) ranking.emplace_back(-count, word);
  std::sort(ranking.begin(), ranking.end());
  Vocabulary out;
  for (const auto& [count, word] : ranking) {
    if (static_cast<int64_t>(out.size()) + kRare + 1 >= size) break;
    out.emplace(word, static_cast<int64_t>(out.size()) + kRare + 1);
  }
  return out;
}

// Every tenth verse is for testing.
std::vector<Verse> part(const std::vector<Verse>& all, bool test) {
  std::vector<Verse> out;
  for (size_t i = 0; i < all.size(); ++i) {
    if ((i % 10 == 9) == test) out.push_back(all[i]);
  }
  return out;
}

// "data": rows of word numbers, each of its own length; "target": a label for each.
accelerate::ColumnDict to_columns(const std::vector<Verse>& verses, const Vocabulary& vocabulary) {
  std::vector<torch::Tensor> rows;
  std::vector<int64_t> labels;
  for (const Verse& verse : verses) {
    std::vector<int64_t> numbers;
    for (const std::string& word : verse.words) {
      const auto found = vocabulary.find(word);
      numbers.push_back(found == vocabulary.end() ? kRare : found->second);
    }
    rows.push_back(torch::tensor(numbers));
    labels.push_back(verse.label);
  }
  return {{"data", accelerate::Ragged::from_rows(rows)}, {"target", torch::tensor(labels)}};
}

accelerate::ColumnDict load_part(const Options& options, bool test) {
  const std::vector<Verse> all = read_verses(options.data);
  const std::vector<Verse> train = part(all, false);
  const Vocabulary vocabulary = most_frequent(train, options.vocabulary);
  if (!test) return to_columns(train, vocabulary);
  // Sorted by length, in-order batches are buckets by themselves.
  std::vector<Verse> sorted = part(all, true);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Verse& a, const Verse& b) { return a.words.size() < b.words.size(); });
  return to_columns(sorted, vocabulary);
}

// ---- Model ------------------------------------------------------------------------------------------------

// A transformer layer over the words, then the mean over those that are no padding.
struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(const Options& options) {
    word = register_module("word", torch::nn::Embedding(options.vocabulary, options.width));
    auto layer = torch::nn::TransformerEncoderLayerOptions(options.width, /*nhead=*/4)
                     .dim_feedforward(2 * options.width)
                     .dropout(0.1);
    encoder = register_module("encoder", torch::nn::TransformerEncoderLayer(layer));
    head = register_module("head", torch::nn::Linear(options.width, 2));
  }
  // words [batch, longest], lengths [batch] -> scores [batch, 2]
  torch::Tensor forward(const torch::Tensor& words, const torch::Tensor& lengths) {
    const auto place = torch::arange(words.size(1), lengths.options());
    const auto is_padding = place.unsqueeze(0) >= lengths.unsqueeze(1);  // [batch, longest]
    const auto x = word->forward(words).transpose(0, 1);  // torch's layer wants [longest, batch, width]
    const auto y = encoder->forward(x, /*src_mask=*/{}, is_padding).transpose(0, 1);
    const auto sum = y.masked_fill(is_padding.unsqueeze(2), 0).sum(1);
    return head->forward(sum / lengths.unsqueeze(1));
  }
  torch::nn::Embedding word{nullptr};
  torch::nn::TransformerEncoderLayer encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Classifier);

// ---- Training ---------------------------------------------------------------------------------------------

std::vector<int64_t> lengths_of(const accelerate::SharedMemoryDataset& data) {
  const auto lengths = data.ragged("data").lengths();
  return {lengths.const_data_ptr<int64_t>(), lengths.const_data_ptr<int64_t>() + lengths.numel()};
}

// Elements of all batches of the first epoch, each filled up to its longest, over the elements that are
// words.
double padded_over_real(const accelerate::BatchSampler& sampler, const std::vector<int64_t>& lengths) {
  int64_t padded = 0;
  int64_t real = 0;
  for (const auto& batch : sampler.batches(0)) {
    int64_t longest = 0;
    for (const int64_t sample : batch) {
      longest = std::max(longest, lengths[static_cast<size_t>(sample)]);
      real += lengths[static_cast<size_t>(sample)];
    }
    padded += longest * static_cast<int64_t>(batch.size());
  }
  return static_cast<double>(padded) / static_cast<double>(std::max<int64_t>(real, 1));
}

// Batches of verses of similar length or, with one batch a bucket, of verses as the shuffle has them.
std::shared_ptr<accelerate::BucketByLengthSampler> sampler(const std::vector<int64_t>& lengths,
                                                           const Options& options, bool buckets) {
  accelerate::BucketOptions bucket;
  bucket.batch_size = options.batch_size;
  bucket.shuffle = true;
  bucket.seed = static_cast<uint64_t>(options.seed);
  bucket.batches_per_bucket = buckets ? 50 : 1;
  return std::make_shared<accelerate::BucketByLengthSampler>(lengths, bucket);
}

struct EpochResult {
  double loss = 0;
  double accuracy = 0;
  double seconds = 0;
};

template <class Model, class Optimizer, class Loader>
EpochResult train_epoch(accelerate::Accelerator& accelerator, Model& model, Optimizer& optimizer,
                        Loader& loader) {
  const auto start = std::chrono::steady_clock::now();
  auto sums = torch::zeros({3}, torch::TensorOptions(accelerator.device()).dtype(torch::kDouble));
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const auto scores = model->forward(batch.data, batch["data_lengths"]);
    const auto loss = torch::nn::functional::cross_entropy(scores, batch.target);
    accelerator.backward(loss);
    optimizer.step();
    const auto right = (scores.argmax(1) == batch.target).sum();
    sums += torch::stack({loss.detach() * batch.size(), right, torch::full_like(right, batch.size())})
                .to(torch::kDouble);
  }
  // The ranks' batches differ in size (the last of a bucket is short), and gather() wants equal shapes. So
  // each rank counts for itself, and the counts are added up once at the end.
  const auto all = accelerator.reduce(sums).cpu();
  const double seen = all[2].template item<double>();
  return {.loss = all[0].template item<double>() / seen,
          .accuracy = all[1].template item<double>() / seen,
          .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

// Batches of equal size, as a plain loader makes them: here gather_for_metrics() gives every verse exactly
// once.
template <class Model, class Loader>
double test_accuracy(accelerate::Accelerator& accelerator, Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  int64_t seen = 0;
  for (auto& batch : loader) {
    const auto hits = model->forward(batch.data, batch["data_lengths"]).argmax(1) == batch.target;
    const auto all = accelerator.gather_for_metrics(hits);
    right += all.sum().template item<int64_t>();
    seen += all.numel();
  }
  model->train();
  return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(seen, 1));
}

double majority(const accelerate::SharedMemoryDataset& data) {
  const double ones = data.tensor("target").to(torch::kDouble).mean().item<double>();
  return std::max(ones, 1 - ones);
}

template <class... Args>
std::string format(const char* text, Args... args) {
  char line[200];
  std::snprintf(line, sizeof line, text, args...);
  return line;
}

void train(const Options& options) {
  accelerate::Accelerator accelerator;
  accelerate::set_seed(static_cast<uint64_t>(options.seed));
  const auto train_set =
      accelerate::SharedMemoryDataset::create(accelerator, [&] { return load_part(options, false); });
  const auto test_set =
      accelerate::SharedMemoryDataset::create(accelerator, [&] { return load_part(options, true); });

  const std::vector<int64_t> lengths = lengths_of(train_set);
  const auto batches = sampler(lengths, options, options.buckets);
  Classifier net(options);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(options.lr));
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, adam, accelerate::DataLoader(train_set, {.batch_sampler = batches}),
                          accelerate::DataLoader(test_set, {.batch_size = 100}));

  accelerator.print(train_set.size(), " verses to train, ", test_set.size(), " to test, ", loader.size(),
                    " batches a rank and epoch");
  accelerator.print(format("padding: %.2f elements a word without buckets, %.2f with them",
                           padded_over_real(*sampler(lengths, options, false), lengths),
                           padded_over_real(*sampler(lengths, options, true), lengths)));
  for (int64_t epoch = 1; epoch <= options.epochs; ++epoch) {
    const EpochResult result = train_epoch(accelerator, model, optimizer, loader);
    accelerator.print(
        format("epoch %ld loss %.4f accuracy %.2f %% in %.1f s, test accuracy %.2f %% (majority %.2f %%)",
               static_cast<long>(epoch), result.loss, 100 * result.accuracy, result.seconds,
               100 * test_accuracy(accelerator, model, test_loader), 100 * majority(test_set)));
  }
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Tells the testaments of the Bible apart by a verse's words, on as many ranks as were started");
  const CLI::Range positive(int64_t{1}, int64_t{1000000000});
  app.add_option("--data", options.data, "verses as the program bible prints them")->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the verses")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--batch_size", options.batch_size, "verses in a batch of each rank")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--vocabulary", options.vocabulary, "words that are told apart")
      ->check(CLI::Range(int64_t{3}, int64_t{1000000}))
      ->capture_default_str();
  app.add_option("--width", options.width, "numbers a word becomes")
      ->check(CLI::IsMember({16, 32, 64, 128, 256}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of weights and order")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_flag("--buckets,!--no-buckets", options.buckets, "batches of verses of similar length [on]");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    train(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
