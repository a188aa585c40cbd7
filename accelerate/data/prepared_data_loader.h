#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/comm/tensor_structure.h"
#include "accelerate/data/batch_feed.h"
#include "accelerate/data/device_transfer.h"
#include "accelerate/data/loader_core.h"

namespace accelerate {

/// A loader of this rank's part of the data. Iterate with `for (auto& batch : loader)`; every such loop is
/// one epoch, with its own order, also when it is left half way. Cheap to copy: copies share the epoch count.
template <class Dataset>
class PreparedDataLoader {
 public:
  using Batch = typename Dataset::BatchType;

  /// Single pass: one loop at a time through one iterator.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator(const Dataset& dataset, const std::shared_ptr<detail::LoaderCore>& core)
        : pass_(std::make_shared<detail::LoaderPass>(core)),
          feed_(detail::make_feed(dataset, pass_)),
          transfer_(core->device(), core->configuration().non_blocking,
                    core->options().pin_memory.value_or(core->device().is_cuda())),
          moves_(core->configuration().device_placement && !core->device().is_cpu()) {
      step();
    }
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      step();
      return *this;
    }
    void operator++(int) { step(); }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.pass_ == nullptr;
    }

   private:
    // A batch on its way to the loop, or the error that took its place, or (empty) the end.
    struct Coming {
      std::optional<detail::FeedStep<Batch>> step;
      detail::DeviceTransfer::Ticket ticket;
      std::exception_ptr error;
    };

    Coming fetch() {
      Coming coming;
      try {
        coming.step = feed_->next();
        if (coming.step && moves_) {
          std::vector<at::Tensor> tensors = collect_tensors(coming.step->batch);
          coming.ticket = transfer_.begin(tensors);
          size_t i = 0;
          for_each_tensor(coming.step->batch, [&](at::Tensor& tensor) {
            if (tensor.defined()) tensor = tensors[i++];
          });
        }
      } catch (...) {
        coming.error = std::current_exception();
      }
      return coming;
    }

    void step() {
      batch_.reset();  // its memory can serve for the next one
      Coming coming = coming_ ? std::move(*coming_) : fetch();
      coming_.reset();
      if (coming.error) std::rethrow_exception(coming.error);
      if (!coming.step) {
        pass_->finish();
        feed_.reset();
        pass_.reset();
        return;
      }
      // Double buffering: the next batch travels while the loop works on this one.
      if (moves_ && transfer_.overlaps()) coming_.emplace(fetch());
      batch_.emplace(std::move(coming.step->batch));
      if (moves_) transfer_.end(coming.ticket, collect_tensors(*batch_));
      pass_->hand_out(coming.step->batches_left, coming.step->remainder);
    }

    std::shared_ptr<detail::LoaderPass> pass_;
    std::unique_ptr<detail::BatchFeed<Batch>> feed_;
    detail::DeviceTransfer transfer_;
    bool moves_;
    std::optional<Coming> coming_;
    std::optional<Batch> batch_;
  };

  PreparedDataLoader(Dataset dataset, std::shared_ptr<detail::LoaderCore> core)
      : dataset_(std::make_shared<const Dataset>(std::move(dataset))), core_(std::move(core)) {}

  Iterator begin() { return Iterator(*dataset_, core_); }
  std::default_sentinel_t end() { return {}; }

  /// Batches that a loop of this rank sees; exactly as many as iteration yields.
  /// @throws DataError for an iterable data set, whose end is not known before it is there.
  int64_t size() const { return core_->num_batches(); }
  /// Samples in a full batch of this rank; 0 if a batch sampler makes batches of different sizes.
  int64_t batch_size() const { return core_->batch_size_per_rank(); }
  /// Samples that all ranks together see in one step; 0 as above.
  int64_t total_batch_size() const { return core_->total_batch_size(); }
  /// Number of the epoch that the next loop runs; counts up with every loop.
  int64_t epoch() const { return core_->epoch(); }
  /// Lets the next loop run epoch `epoch`. Not needed in ordinary training.
  void set_epoch(int64_t epoch) { core_->set_epoch(epoch); }
  /// The next loop leaves out its first `count` batches (of each rank). Costs nothing: no batch is fetched
  /// for it; a stream reads past them.
  void skip_first_batches(int64_t count) { core_->skip_first_batches(count); }
  /// Where the loader stands: within a loop after the current batch, else before the next loop. After a loop
  /// that was left half way it is still the place where that was left.
  LoaderState state() const { return core_->state(); }
  /// HF's name for state().
  LoaderState state_dict() const { return core_->state(); }
  /// Lets the next loop go on from a state, also one that a job with another number of ranks or another batch
  /// size wrote: then the samples that are left are shared out anew, each once. Draws no random numbers.
  void load_state(const LoaderState& state) { core_->load_state(state); }
  /// HF's name for load_state().
  void load_state_dict(const LoaderState& state) { core_->load_state(state); }
  const Dataset& dataset() const { return *dataset_; }

 private:
  std::shared_ptr<const Dataset>
      dataset_;  // shared, so that the handle can be assigned whatever a data set is
  std::shared_ptr<detail::LoaderCore> core_;
};

}  // namespace accelerate
