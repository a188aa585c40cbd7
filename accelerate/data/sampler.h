#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerate {

// Note [Orders and epochs]
// Samplers are pure functions of the epoch, equal on all ranks and in every run: resuming in the middle of an
// epoch is arithmetic, and no rank needs to hear of another's draws. Random ones draw from a generator of
// their own, seeded with seed + epoch as HF Accelerate's SeedableRandomSampler; the draws are those of
// torch's samplers in Python with a generator of that seed.

/// Decides in which order the samples of an epoch are visited. See Note [Orders and epochs]. Derive your own
/// from it.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Sample numbers an epoch visits.
  virtual int64_t size() const = 0;
  /// The order of epoch `epoch` (0, 1, ...).
  virtual std::vector<int64_t> order(int64_t epoch) const = 0;
  /// True if the order is this rank's part already; it is then not shared out again.
  virtual bool already_sharded() const { return false; }
};

/// 0, 1, ..., n-1.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(int64_t num_samples) : num_samples_(num_samples) {}
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t num_samples_;
};

/// A fresh random order each epoch: torch.randperm, or torch.randint with replacement.
class RandomSampler final : public Sampler {
 public:
  /// Draws `draws` numbers (default: as many as there are samples) from 0..num_samples-1; without replacement
  /// every sample comes once before any comes again.
  RandomSampler(int64_t num_samples, uint64_t seed, bool replacement = false,
                std::optional<int64_t> draws = {});
  int64_t size() const override { return draws_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t num_samples_;
  uint64_t seed_;
  bool replacement_;
  int64_t draws_;
};

/// The order of torch's RandomSampler in Python with a generator that goes on from epoch to epoch, which is
/// what HF Accelerate runs with use_seedable_sampler=False and a generator in the loader: epoch e follows
/// from the e - 1 before it.
class GeneratorRandomSampler final : public Sampler {
 public:
  GeneratorRandomSampler(int64_t num_samples, uint64_t seed) : num_samples_(num_samples), seed_(seed) {}
  int64_t size() const override { return num_samples_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  int64_t num_samples_;
  uint64_t seed_;
};

/// These samples, in this order.
class SubsetSampler final : public Sampler {
 public:
  explicit SubsetSampler(std::vector<int64_t> indices) : indices_(std::move(indices)) {}
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  std::vector<int64_t> order(int64_t) const override { return indices_; }

 private:
  std::vector<int64_t> indices_;
};

/// These samples, in a fresh random order each epoch (torch's SubsetRandomSampler).
class SubsetRandomSampler final : public Sampler {
 public:
  SubsetRandomSampler(std::vector<int64_t> indices, uint64_t seed)
      : indices_(std::move(indices)), seed_(seed) {}
  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  std::vector<int64_t> indices_;
  uint64_t seed_;
};

/// Draws samples in proportion to their weights (torch's WeightedRandomSampler, torch.multinomial).
class WeightedRandomSampler final : public Sampler {
 public:
  /// `weights`: one number a sample, 0 or more. Without replacement there must be `draws` weights above 0.
  /// @throws DataError for weights that are negative, not finite or all 0, and for draws that can't be.
  WeightedRandomSampler(std::vector<double> weights, int64_t draws, uint64_t seed, bool replacement = true);
  int64_t size() const override { return draws_; }
  std::vector<int64_t> order(int64_t epoch) const override;

 private:
  std::vector<double> weights_;
  int64_t draws_;
  uint64_t seed_;
  bool replacement_;
};

namespace detail {

// Runs `draw` with torch's global CPU generator seeded with `seed`, and gives the generator its state back.
class ScopedGlobalSeed {
 public:
  explicit ScopedGlobalSeed(uint64_t seed);
  ~ScopedGlobalSeed();
  ScopedGlobalSeed(const ScopedGlobalSeed&) = delete;
  ScopedGlobalSeed& operator=(const ScopedGlobalSeed&) = delete;

 private:
  struct Saved;
  Saved* saved_;
};

template <class T>
concept HasSetEpoch = requires(T& sampler) {
  sampler.set_epoch(size_t{0});
};

}  // namespace detail

/// A sampler of torch::data::samplers as one of ours. Its random draws come from torch's global generator,
/// which is seeded with seed + epoch for their duration, so that all ranks draw alike. A sampler that has
/// set_epoch(), as torch's distributed ones, gives each rank its part by itself and is left alone.
template <class TorchSampler>
class TorchSamplerAdapter final : public Sampler {
 public:
  /// `num_samples`: how many the sampler gives in an epoch.
  TorchSamplerAdapter(TorchSampler sampler, int64_t num_samples, uint64_t seed = 0)
      : sampler_(std::move(sampler)), num_samples_(num_samples), seed_(seed) {}
  int64_t size() const override { return num_samples_; }
  bool already_sharded() const override { return detail::HasSetEpoch<TorchSampler>; }
  std::vector<int64_t> order(int64_t epoch) const override {
    const std::lock_guard lock(mutex_);
    const detail::ScopedGlobalSeed seed(seed_ + static_cast<uint64_t>(epoch));
    if constexpr (detail::HasSetEpoch<TorchSampler>) sampler_.set_epoch(static_cast<size_t>(epoch));
    sampler_.reset();
    std::vector<int64_t> out;
    while (auto batch = sampler_.next(kPiece)) {
      for (const size_t index : *batch) out.push_back(static_cast<int64_t>(index));
    }
    return out;
  }

 private:
  static constexpr size_t kPiece = 1024;
  mutable std::mutex mutex_;
  mutable TorchSampler sampler_;  // torch's samplers are drawn from by changing them
  int64_t num_samples_;
  uint64_t seed_;
};

/// Decides which samples of an epoch make up each batch, where a batch size alone does not. Pure, as Sampler.
/// Batch i goes to rank i modulo the world size.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// The batches of epoch `epoch`, none of them empty.
  virtual std::vector<std::vector<int64_t>> batches(int64_t epoch) const = 0;
  /// Samples in a batch, or 0 if that varies.
  virtual int64_t batch_size() const { return 0; }
};

struct BucketOptions {
  /// The most samples in a batch.
  int64_t batch_size = 1;
  /// The most elements in a batch once its samples are filled up to the longest; 0: no limit. A sample that
  /// is longer alone is a batch of its own.
  int64_t max_elements = 0;
  bool shuffle = false;
  uint64_t seed = 0;
  /// Leave out batches that are neither full nor at their limit of elements.
  bool drop_last = false;
  /// With shuffle, samples are sorted by length within pieces of this many batches: larger means less
  /// padding, smaller a better shuffle.
  int64_t batches_per_bucket = 50;
};

/// Batches of samples of similar length, so that little is filled up.
class BucketByLengthSampler final : public BatchSampler {
 public:
  /// `lengths`: one a sample.
  /// @throws DataError for sizes that are not positive.
  BucketByLengthSampler(std::vector<int64_t> lengths, const BucketOptions& options);
  std::vector<std::vector<int64_t>> batches(int64_t epoch) const override;

 private:
  std::vector<std::vector<int64_t>> cut(const std::vector<int64_t>& sorted) const;

  std::vector<int64_t> lengths_;
  BucketOptions options_;
};

}  // namespace accelerate
