#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/comm/serializer.h"
#include "accelerate/data/dispatch.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/prefetcher.h"
#include "accelerate/data/stream_reader.h"

// How the batches of one loop come about: numbered samples or a stream, fetched by this rank or dealt out by
// the main process.
namespace accelerate::detail {

/// A batch, and where it stands in its loop; see LoaderProgress.
template <class Batch>
struct FeedStep {
  Batch batch;
  int64_t batches_left = 0;
  int64_t remainder = 0;
};

/// Gives the batches of one loop.
template <class Batch>
class BatchFeed {
 public:
  virtual ~BatchFeed() = default;
  /// The next batch, or nullopt after the last.
  virtual std::optional<FeedStep<Batch>> next() = 0;
};

// Batches of memory of their own, where the data set gave views of its own.
template <class Batch>
void own_memory(Batch& batch) {
  for_each_tensor(batch, [](at::Tensor& tensor) {
    if (tensor.defined() && is_read_only(tensor)) tensor = tensor.clone();
  });
}

/// Fetches from a data set of numbered samples. When dispatching it gives the batches of rank 0, 1, ... in
/// turn.
template <class Dataset>
class NumberedFeed final : public BatchFeed<typename Dataset::BatchType> {
 public:
  using Batch = typename Dataset::BatchType;

  NumberedFeed(const Dataset& dataset, std::shared_ptr<const LoaderPass> pass)
      : pass_(std::move(pass)),
        ranks_(pass_->core().dispatches() ? pass_->core().shard().world_size : 1),
        num_batches_(pass_->plan()->num_batches(pass_->core().shard().rank)),
        next_job_(pass_->first_batch() * ranks_),
        next_batch_(next_job_),
        prefetcher_([this] { return draw(); }, [this, dataset](int64_t job) { return fetch(dataset, job); },
                    pass_->core().options().num_workers,
                    pass_->core().options().num_workers * pass_->core().options().prefetch_factor) {}

  std::optional<FeedStep<Batch>> next() override {
    std::optional<Batch> batch = prefetcher_.next();
    if (!batch) return std::nullopt;
    const int64_t round = next_batch_++ / ranks_;
    const int64_t batches_left = num_batches_ - round;
    return FeedStep<Batch>{std::move(*batch), batches_left, pass_->plan()->remainder(round)};
  }

 private:
  std::optional<int64_t> draw() {
    if (next_job_ >= num_batches_ * ranks_) return std::nullopt;
    return next_job_++;
  }

  Batch fetch(const Dataset& dataset, int64_t job) const {
    const int64_t rank = ranks_ > 1 ? job % ranks_ : pass_->core().shard().rank;
    const std::vector<int64_t> indices = pass_->plan()->indices(job / ranks_, rank);
    try {
      Batch batch = dataset.get_batch(indices);
      if (pass_->core().options().copy_batches) own_memory(batch);
      return batch;
    } catch (const std::exception& error) {
      rethrow_with_batch(error, job / ranks_, indices);
    }
  }

  std::shared_ptr<const LoaderPass> pass_;
  int64_t ranks_;
  int64_t num_batches_;
  int64_t next_job_;
  int64_t next_batch_;
  Prefetcher<int64_t, Batch> prefetcher_;  // last: its threads use the rest
};

/// Fetches from a stream, reading far enough ahead that the end of an accumulation window is known.
template <StreamedDataset Dataset>
class StreamFeed final : public BatchFeed<typename Dataset::BatchType> {
 public:
  using Batch = typename Dataset::BatchType;
  using Items = std::vector<typename Dataset::RawItem>;

  StreamFeed(const Dataset& dataset, std::shared_ptr<const LoaderPass> pass)
      : pass_(std::move(pass)),
        ranks_(pass_->core().dispatches() ? pass_->core().shard().world_size : 1),
        reader_(dataset, pass_->core().shard(), pass_->epoch(), pass_->samples_to_skip()),
        prefetcher_([this] { return reader_.next_batch(); },
                    [dataset](Items items) { return dataset.make_batch(std::move(items)); },
                    pass_->core().options().num_workers,
                    pass_->core().options().num_workers * pass_->core().options().prefetch_factor) {}

  std::optional<FeedStep<Batch>> next() override {
    const int64_t lookahead = pass_->core().active()->lookahead;
    while (!ended_ && static_cast<int64_t>(ahead_.size()) < (lookahead + 1) * ranks_) {
      std::optional<Batch> batch = prefetcher_.next();
      ended_ = !batch;
      if (batch) ahead_.push_back(std::move(*batch));
    }
    if (ahead_.empty()) return std::nullopt;
    const auto batches_left = (static_cast<int64_t>(ahead_.size()) + ranks_ - 1) / ranks_;
    FeedStep<Batch> step{std::move(ahead_.front()), batches_left,
                         batches_left == 1 ? reader_.remainder() : 0};
    ahead_.pop_front();
    return step;
  }

 private:
  std::shared_ptr<const LoaderPass> pass_;
  int64_t ranks_;
  bool ended_ = false;
  std::deque<Batch> ahead_;
  StreamReader<Dataset> reader_;
  Prefetcher<Items, Batch> prefetcher_;  // last: its threads use the reader
};

/// The main process takes every rank's batch from `source` and sends it; the other ranks receive.
template <Serializable Batch>
class DispatchFeed final : public BatchFeed<Batch> {
 public:
  /// `source` is null on all ranks but the first.
  DispatchFeed(std::unique_ptr<BatchFeed<Batch>> source, Communicator& communicator, int64_t epoch)
      : source_(std::move(source)), communicator_(communicator), epoch_(epoch) {}

  std::optional<FeedStep<Batch>> next() override { return source_ ? send() : receive(); }

 private:
  std::optional<FeedStep<Batch>> send() {
    std::optional<FeedStep<Batch>> own;
    std::vector<std::string> parcels(static_cast<size_t>(communicator_.size()));
    try {
      for (std::string& parcel : parcels) {
        std::optional<FeedStep<Batch>> step = source_->next();
        if (!step) break;
        if (!own) {
          own = std::move(step);
          continue;
        }
        ByteWriter writer;
        save_value(writer, step->batch);
        parcel = writer.take();
      }
    } catch (const std::exception& error) {
      announce_failure(communicator_, error.what());
      throw;
    } catch (...) {
      announce_failure(communicator_, "something that is no std::exception was thrown");
      throw;
    }
    scatter_parcels(
        communicator_, parcels,
        own ? DispatchHeader{own->batches_left, own->remainder, epoch_} : DispatchHeader{.epoch = epoch_});
    return own;
  }

  std::optional<FeedStep<Batch>> receive() {
    DispatchHeader header;
    const at::Tensor parcel = receive_parcel(communicator_, &header);
    check_same_epoch(header, epoch_, communicator_.rank());
    if (header.batches_left == 0) return std::nullopt;
    ByteReader reader({static_cast<const std::byte*>(parcel.const_data_ptr()), parcel.nbytes()});
    return FeedStep<Batch>{load_value<Batch>(reader), header.batches_left, header.remainder};
  }

  std::unique_ptr<BatchFeed<Batch>> source_;
  Communicator& communicator_;
  int64_t epoch_;
};

/// The feed of one loop. Collective on each of its next() if the loader dispatches.
/// @throws DataError when batches are to be dispatched whose type is not Serializable.
template <class Dataset>
std::unique_ptr<BatchFeed<typename Dataset::BatchType>> make_feed(const Dataset& dataset,
                                                                  std::shared_ptr<const LoaderPass> pass) {
  using Batch = typename Dataset::BatchType;
  const LoaderCore& core = pass->core();
  const auto local = [&]() -> std::unique_ptr<BatchFeed<Batch>> {
    if constexpr (StreamedDataset<Dataset>) {
      return std::make_unique<StreamFeed<Dataset>>(dataset, pass);
    } else {
      return std::make_unique<NumberedFeed<Dataset>>(dataset, pass);
    }
  };
  if (!core.dispatches()) return local();
  if constexpr (Serializable<Batch>) {
    return std::make_unique<DispatchFeed<Batch>>(core.shard().rank == 0 ? local() : nullptr,
                                                 core.communicator(), pass->epoch());
  } else {
    throw_not_serializable();
  }
}

}  // namespace accelerate::detail
