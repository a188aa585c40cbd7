#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/item_dataset.h"

namespace accelerate {

// Note [Iterable data sets]
// A source that gives its items one after the other, without numbers: a log that grows, a simulation, a
// socket.
//   std::optional<Item> next();          the next item; nullopt at the end of the epoch
//   void reset();  or  reset(int64_t epoch);   back to the start
//   void skip(int64_t count);            optional: leaves items out faster than next() would
// LibTorch's stream and chunk data sets do as well: get_batch(size_t) that gives an optional vector of items
// (StatefulDataset, ChunkDataset) or a vector, empty at the end (StreamDataset).
// With several ranks either the main process reads and sends every rank its batches (dispatch_batches, the
// default as in HF Accelerate), or every rank reads all and keeps its part (dispatch_batches = false; the
// source must then give every rank the same items), or the source gives each rank its own part
// (DataLoaderOptions::already_sharded).

namespace detail {

template <class Source>
concept GivesItems = requires(Source& source) {
  source.next().has_value();
};

template <class Source>
concept GivesOptionalBatches = requires(Source& source) {
  source.get_batch(size_t{}).value().begin();
};

// The type of one item of a source.
template <class Source>
auto item_of(Source& source) {
  if constexpr (GivesItems<Source>) {
    return *source.next();
  } else if constexpr (GivesOptionalBatches<Source>) {
    return *source.get_batch(size_t{}).value().begin();
  } else {
    return *source.get_batch(size_t{}).begin();
  }
}

}  // namespace detail

/// A data set for DataLoader over a source as in Note [Iterable data sets]. Each item goes through
/// `transform`, and a batch through `collate`; with DataLoaderOptions::num_workers these run on several
/// threads at once, while the source is read by one at a time. Copies share the source, and one loop at a
/// time runs over it.
template <class Source, class Transform = NoTransform, class Collate = StackCollate>
class IterableDataset {
 public:
  using RawItem = std::remove_cvref_t<decltype(detail::item_of(std::declval<Source&>()))>;
  using Item = decltype(std::declval<const Transform&>()(std::declval<RawItem>()));
  using BatchType = decltype(std::declval<const Collate&>()(std::declval<std::vector<Item>>()));

  /// `read_size`: how many items get_batch() is asked for at once; a ChunkDataset wants its own batch size.
  explicit IterableDataset(Source source, Transform transform = {}, Collate collate = {},
                           size_t read_size = 1)
      : source_(std::make_shared<Source>(std::move(source))),
        transform_(std::move(transform)),
        collate_(std::move(collate)),
        read_size_(read_size) {}

  /// Back to the source's start.
  void begin_epoch(int64_t epoch) const {
    buffer_->clear();
    if constexpr (requires { source_->reset(epoch); }) {
      source_->reset(epoch);
    } else if constexpr (requires { source_->reset(); }) {
      source_->reset();
    }
  }

  /// The next item of the source, or nullopt at its end.
  std::optional<RawItem> next() const {
    if constexpr (detail::GivesItems<Source>) {
      return source_->next();
    } else {
      if (buffer_->empty()) refill();
      if (buffer_->empty()) return std::nullopt;
      std::optional<RawItem> item = std::move(buffer_->front());
      buffer_->pop_front();
      return item;
    }
  }

  /// True if the source can leave items out without reading them.
  static constexpr bool kSkips = requires(Source & source) { source.skip(int64_t{}); };
  void skip(int64_t count) const requires kSkips { source_->skip(count); }

  /// Transforms and collates.
  /// @throws DataError saying which item of the batch failed, with the original nested in it.
  BatchType make_batch(std::vector<RawItem> raw) const {
    std::vector<Item> items;
    items.reserve(raw.size());
    for (size_t i = 0; i < raw.size(); ++i) {
      try {
        items.push_back(transform_(std::move(raw[i])));
      } catch (const std::exception& error) {
        std::throw_with_nested(
            DataError({.what = concat("item ", i, " of the batch: ", error_message(error))}));
      }
    }
    return collate_(std::move(items));
  }

 private:
  void refill() const {
    if constexpr (detail::GivesOptionalBatches<Source>) {
      if (auto batch = source_->get_batch(read_size_)) {
        for (auto& item : *batch) buffer_->push_back(std::move(item));
      }
    } else {
      for (auto& item : source_->get_batch(read_size_)) buffer_->push_back(std::move(item));
    }
  }

  std::shared_ptr<Source> source_;
  std::shared_ptr<std::deque<RawItem>> buffer_ = std::make_shared<std::deque<RawItem>>();
  Transform transform_;
  Collate collate_;
  size_t read_size_;
};

/// A data set that a loader reads as a stream.
template <class D>
concept StreamedDataset = requires(const D& dataset) {
  dataset.begin_epoch(int64_t{});
  dataset.next().has_value();
};

}  // namespace accelerate
