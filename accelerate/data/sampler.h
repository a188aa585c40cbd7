#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace accelerate {

/// Decides in which order the samples of an epoch are visited. A pure function of the epoch: equal on all
/// ranks and in every run.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Sample numbers an epoch visits.
  virtual int64_t size() const = 0;
  /// The order of epoch `epoch` (0, 1, ...).
  virtual std::vector<int64_t> order(int64_t epoch) const = 0;
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

/// A fresh random order each epoch, seeded with seed + epoch: the order of HF Accelerate's
/// SeedableRandomSampler, which is that of torch.randperm and torch.randint with the same seed in Python.
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

}  // namespace accelerate
