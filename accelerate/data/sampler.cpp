#include "accelerate/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void append(std::vector<int64_t>& out, const at::Tensor& numbers, int64_t count) {
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  out.insert(out.end(), data, data + count);
}

at::Generator seeded(uint64_t seed, int64_t epoch) {
  return at::detail::createCPUGenerator(seed + static_cast<uint64_t>(epoch));
}

std::mutex& global_seed_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::vector<int64_t> permutation(int64_t count, at::Generator& generator) {
  std::vector<int64_t> out;
  append(out, at::randperm(count, generator, at::TensorOptions(at::kLong)), count);
  return out;
}

}  // namespace

std::vector<int64_t> SequentialSampler::order(int64_t) const {
  std::vector<int64_t> out(static_cast<size_t>(num_samples_));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

RandomSampler::RandomSampler(int64_t num_samples, uint64_t seed, bool replacement,
                             std::optional<int64_t> draws)
    : num_samples_(num_samples), seed_(seed), replacement_(replacement), draws_(draws.value_or(num_samples)) {
  if (num_samples < 0 || draws_ < 0 || (num_samples == 0 && draws_ > 0)) {
    throw DataError({.what = "random sampler",
                     .expected = "a positive number of samples",
                     .got = concat(draws_, " draws from ", num_samples, " samples")});
  }
}

std::vector<int64_t> RandomSampler::order(int64_t epoch) const {
  at::Generator generator = seeded(seed_, epoch);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(draws_));
  if (replacement_) {
    // torch's sampler draws in pieces of 32; the pieces are part of the order.
    constexpr int64_t kPiece = 32;
    for (int64_t done = 0; done < draws_; done += kPiece) {
      const int64_t count = std::min(kPiece, draws_ - done);
      append(out, at::randint(num_samples_, {count}, generator, at::TensorOptions(at::kLong)), count);
    }
    return out;
  }
  while (static_cast<int64_t>(out.size()) < draws_) {
    const at::Tensor permutation = at::randperm(num_samples_, generator, at::TensorOptions(at::kLong));
    append(out, permutation, std::min(num_samples_, draws_ - static_cast<int64_t>(out.size())));
  }
  return out;
}

std::vector<int64_t> GeneratorRandomSampler::order(int64_t epoch) const {
  at::Generator generator = seeded(seed_, 0);
  // Each epoch of a Python loader draws a number for its workers before the order, and once more an order at
  // the end, of which it needs nothing.
  for (int64_t before = 0;; ++before) {
    at::empty({}, at::TensorOptions(at::kLong)).random_(generator);
    std::vector<int64_t> order = permutation(num_samples_, generator);
    if (before == epoch) return order;
    permutation(num_samples_, generator);
  }
}

std::vector<int64_t> SubsetRandomSampler::order(int64_t epoch) const {
  at::Generator generator = seeded(seed_, epoch);
  std::vector<int64_t> out = permutation(size(), generator);
  for (int64_t& index : out) index = indices_[static_cast<size_t>(index)];
  return out;
}

WeightedRandomSampler::WeightedRandomSampler(std::vector<double> weights, int64_t draws, uint64_t seed,
                                             bool replacement)
    : weights_(std::move(weights)), draws_(draws), seed_(seed), replacement_(replacement) {
  int64_t positive = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!std::isfinite(weights_[i]) || weights_[i] < 0) {
      throw DataError({.what = concat("weight of sample ", i),
                       .expected = "a finite number of 0 or more",
                       .got = std::to_string(weights_[i])});
    }
    positive += weights_[i] > 0;
  }
  const bool enough = replacement ? positive > 0 : positive >= draws;
  if (draws < 1 || !enough) {
    throw DataError({.what = "weighted sampler",
                     .expected = replacement ? "draws of 1 or more and a weight above 0"
                                             : "at least as many weights above 0 as draws",
                     .got = concat(draws, " draws, ", positive, " weights above 0")});
  }
}

std::vector<int64_t> WeightedRandomSampler::order(int64_t epoch) const {
  at::Generator generator = seeded(seed_, epoch);
  const at::Tensor weights =
      at::from_blob(const_cast<double*>(weights_.data()), {static_cast<int64_t>(weights_.size())},
                    at::TensorOptions(at::kDouble));
  std::vector<int64_t> out;
  append(out, at::multinomial(weights, draws_, replacement_, generator), draws_);
  return out;
}

struct detail::ScopedGlobalSeed::Saved {
  // One at a time in the whole process: ranks may be threads, and the generator is everybody's.
  std::unique_lock<std::mutex> alone;
  at::Generator generator;
  at::Tensor state;
};

detail::ScopedGlobalSeed::ScopedGlobalSeed(uint64_t seed)
    : saved_(new Saved{std::unique_lock(global_seed_mutex()), at::detail::getDefaultCPUGenerator(), {}}) {
  const std::lock_guard lock(saved_->generator.mutex());
  saved_->state = at::Tensor::wrap_tensor_impl(saved_->generator.unsafeGetGeneratorImpl()->get_state());
  saved_->generator.set_current_seed(seed);
}

detail::ScopedGlobalSeed::~ScopedGlobalSeed() {
  {
    const std::lock_guard lock(saved_->generator.mutex());
    saved_->generator.set_state(saved_->state);
  }
  delete saved_;
}

BucketByLengthSampler::BucketByLengthSampler(std::vector<int64_t> lengths, const BucketOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
  constexpr int64_t kMost = int64_t{1} << 31;
  if (std::any_of(lengths_.begin(), lengths_.end(), [](int64_t length) { return length < 0; })) {
    throw DataError({.what = "bucket sampler", .expected = "lengths of 0 or more", .got = "a negative one"});
  }
  if (options.batch_size < 1 || options.batch_size > kMost || options.batches_per_bucket < 1 ||
      options.batches_per_bucket > kMost || options.max_elements < 0) {
    throw DataError(
        {.what = "bucket sampler",
         .expected = "a batch_size and batches_per_bucket of 1 or more, max_elements of 0 or more",
         .got = concat(options.batch_size, ", ", options.batches_per_bucket, " and ", options.max_elements)});
  }
}

std::vector<std::vector<int64_t>> BucketByLengthSampler::cut(const std::vector<int64_t>& sorted) const {
  std::vector<std::vector<int64_t>> out;
  std::vector<int64_t> batch;
  const auto flush = [&] {
    if (!batch.empty()) out.push_back(std::exchange(batch, {}));
  };
  for (const int64_t sample : sorted) {
    const int64_t length =
        lengths_[static_cast<size_t>(sample)];  // the longest so far, since they are sorted
    const auto count = static_cast<int64_t>(batch.size());
    if (options_.max_elements > 0 && (count + 1) * length > options_.max_elements) flush();
    batch.push_back(sample);
    if (static_cast<int64_t>(batch.size()) == options_.batch_size) flush();
  }
  if (!options_.drop_last) flush();
  return out;
}

std::vector<std::vector<int64_t>> BucketByLengthSampler::batches(int64_t epoch) const {
  const auto count = static_cast<int64_t>(lengths_.size());
  at::Generator generator = seeded(options_.seed, epoch);
  const std::vector<int64_t> order =
      options_.shuffle ? permutation(count, generator) : SequentialSampler(count).order(0);
  const int64_t piece = options_.shuffle ? options_.batch_size * options_.batches_per_bucket : count;
  std::vector<std::vector<int64_t>> out;
  for (int64_t begin = 0; begin < count; begin += piece) {
    std::vector<int64_t> sorted(order.begin() + begin, order.begin() + std::min(begin + piece, count));
    std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
      return lengths_[static_cast<size_t>(a)] < lengths_[static_cast<size_t>(b)];
    });
    for (auto& batch : cut(sorted)) out.push_back(std::move(batch));
  }
  if (!options_.shuffle) return out;
  std::vector<std::vector<int64_t>> shuffled;
  for (const int64_t i : permutation(static_cast<int64_t>(out.size()), generator)) {
    shuffled.push_back(std::move(out[static_cast<size_t>(i)]));
  }
  return shuffled;
}

}  // namespace accelerate
