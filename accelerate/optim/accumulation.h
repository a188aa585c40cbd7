#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/data/active_loaders.h"

namespace accelerate {

/// Gradient accumulation: which micro-batches end a window.
struct AccumulationOptions {
  /// Micro-batches per optimizer step. At least 1.
  int64_t num_steps = 1;
  /// The last batch of a loader ends a window, however short.
  bool sync_with_dataloader = true;
};

/// Counts micro-batches. A window is the micro-batches of one optimizer step; its size is known when it
/// begins, since the running loader says how many batches are left, so that the loss is divided by their real
/// number.
class Accumulation {
 public:
  Accumulation(AccumulationOptions options, std::shared_ptr<const ActiveLoaders> active)
      : options_(options), active_(std::move(active)) {}

  /// Begins the next micro-batch.
  void begin_micro_batch();

  /// This micro-batch ends its window: gradients are reduced, the optimizer steps. True without accumulation.
  bool sync_gradients() const { return sync_gradients_; }
  void set_sync_gradients(bool on) { sync_gradients_ = on; }
  /// What the loss is divided by: the micro-batches in the current window; outside of any micro-batch,
  /// num_steps, as HF does for loops that count by themselves.
  int64_t divisor() const { return in_micro_batch_ ? window_size_ : options_.num_steps; }
  /// The next micro-batch begins a window, as after the start.
  void restart() {
    position_ = 0;
    sync_gradients_ = true;
    in_micro_batch_ = false;
  }
  /// Micro-batches of the current window whose gradients no optimizer step has used yet.
  int64_t pending() const { return position_; }
  /// Ends the current micro-batch.
  void end_micro_batch() { in_micro_batch_ = false; }
  /// Micro-batches in the current window.
  int64_t window_size() const { return window_size_; }
  /// Counts windows, for those who keep something per window.
  int64_t window() const { return window_; }
  /// Counts micro-batches.
  int64_t micro_batch() const { return micro_batch_; }
  const AccumulationOptions& options() const { return options_; }
  void set_num_steps(int64_t num_steps) { options_.num_steps = num_steps; }

 private:
  AccumulationOptions options_;
  std::shared_ptr<const ActiveLoaders> active_;
  bool sync_gradients_ = true;
  int64_t window_size_ = 1;
  int64_t position_ = 0;  // micro-batches of the current window so far
  int64_t window_ = 0;
  int64_t micro_batch_ = 0;
  bool in_micro_batch_ = false;
};

}  // namespace accelerate
