#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace accelerate {

/// Where a running loop over a prepared loader stands.
struct LoaderProgress {
  /// Batches of this rank that are still to come, the current one included. A stream, whose end is not known
  /// before it is there, says at least one more than ActiveLoaders::lookahead as long as it goes on.
  int64_t batches_left = 0;
  /// Samples of this round that are real, the rest being repeats to make the ranks even; 0: all are real; -1:
  /// not known.
  int64_t remainder = -1;
  /// The ranks' batches of one round may differ in size.
  bool sizes_vary = false;
  bool end_of_dataloader() const { return batches_left == 1; }
};

/// The loops over prepared loaders that are running, the one whose batch came last at the end. A loop that is
/// left half way (break, exception) takes itself out. One thread a rank.
class ActiveLoaders {
 public:
  void push(std::shared_ptr<LoaderProgress> progress) { stack_.push_back(std::move(progress)); }
  void remove(const LoaderProgress* progress) {
    std::erase_if(stack_, [&](const auto& entry) { return entry.get() == progress; });
  }
  /// This loop's batch is the one that is worked on: it becomes the innermost.
  void touch(const LoaderProgress* progress) {
    const auto found = std::find_if(stack_.begin(), stack_.end(),
                                    [&](const auto& entry) { return entry.get() == progress; });
    if (found != stack_.end()) std::rotate(found, found + 1, stack_.end());
  }
  /// The running loop whose batch came last, or null outside of any.
  const LoaderProgress* current() const { return stack_.empty() ? nullptr : stack_.back().get(); }

  /// Batches that a stream reads ahead, so that the end of an accumulation window is known when the window
  /// begins.
  int64_t lookahead = 1;
  /// Overrides DataLoaderConfiguration::even_batches of the loops that begin.
  std::optional<bool> even_batches;

 private:
  std::vector<std::shared_ptr<LoaderProgress>> stack_;
};

}  // namespace accelerate
