#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace accelerate {

/// Where a running loop over a prepared loader stands.
struct LoaderProgress {
  /// Batches of this rank that are still to come, the current one included.
  int64_t batches_left = 0;
  /// Samples of the last round that are real, the rest being repeats to make the ranks even; 0: all are real;
  /// -1: not known.
  int64_t remainder = -1;
  bool end_of_dataloader() const { return batches_left == 1; }
};

/// The loops over prepared loaders that are running, innermost last. A loop that is left half way (break,
/// exception) takes itself out. One thread a rank.
class ActiveLoaders {
 public:
  void push(std::shared_ptr<LoaderProgress> progress) { stack_.push_back(std::move(progress)); }
  void remove(const LoaderProgress* progress) {
    std::erase_if(stack_, [&](const auto& entry) { return entry.get() == progress; });
  }
  /// The innermost running loop, or null outside of any.
  const LoaderProgress* current() const { return stack_.empty() ? nullptr : stack_.back().get(); }

 private:
  std::vector<std::shared_ptr<LoaderProgress>> stack_;
};

}  // namespace accelerate
