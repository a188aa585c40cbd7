#include "accelerate/data/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <numeric>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void append(std::vector<int64_t>& out, const at::Tensor& numbers, int64_t count) {
  const int64_t* data = numbers.const_data_ptr<int64_t>();
  out.insert(out.end(), data, data + count);
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
  at::Generator generator = at::detail::createCPUGenerator(seed_ + static_cast<uint64_t>(epoch));
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

}  // namespace accelerate
