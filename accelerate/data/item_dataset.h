#pragma once

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "accelerate/comm/tensor_structure.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

// Data sets that give one item at a time: an item is any structure of tensors (see Note [Tensor structures]).
namespace accelerate {

/// Stacks the items of a batch: every tensor gets a new first dimension. Tensors that are undefined in all
/// items stay so. Items with parts that are no tensors do not compile: those parts would be lost.
struct StackCollate {
  template <class Item>
  Item operator()(std::vector<Item> items) const {
    return combine(std::move(items), [](const std::vector<at::Tensor>& parts) { return at::stack(parts); });
  }

  /// Builds one item out of many, each tensor from its counterparts in all items.
  template <class Item, class F>
  static Item combine(std::vector<Item> items, const F& join) {
    static_assert(
        detail::HoldsOnlyTensors<Item>::value,
        "accelerate: items must hold tensors only (Note [Tensor structures]); give the data set a collate of "
        "your own, or a transform that makes tensors of the other parts");
    if constexpr (detail::HasSerializeMember<Item> && !detail::HasForEachTensor<Item>) {
      detail::OnlyTensors check;
      for (Item& item : items) item.serialize(check);
    }
    std::vector<std::vector<at::Tensor>> columns;
    for (size_t i = 0; i < items.size(); ++i) {
      size_t column = 0;
      for_each_tensor(items[i], [&](at::Tensor& tensor) {
        if (i == 0) columns.emplace_back();
        if (column < columns.size()) columns[column].push_back(tensor);
        ++column;
      });
      if (column != columns.size()) {
        throw DataError({.what = concat("item ", i, " of a batch"),
                         .expected = concat(columns.size(), " tensors, as in the first item"),
                         .got = std::to_string(column)});
      }
    }
    Item out = std::move(items.front());
    size_t column = 0;
    for_each_tensor(out, [&](at::Tensor& tensor) { tensor = join_defined(columns[column++], join); });
    return out;
  }

 private:
  template <class F>
  static at::Tensor join_defined(const std::vector<at::Tensor>& parts, const F& join) {
    const auto defined =
        std::count_if(parts.begin(), parts.end(), [](const auto& part) { return part.defined(); });
    if (defined == 0) return {};
    if (defined < static_cast<int64_t>(parts.size())) {
      throw DataError({.what = "a tensor of a batch's items",
                       .expected = "defined in all of them or in none",
                       .got = concat("defined in ", defined, " of ", parts.size())});
    }
    return join(parts);
  }
};

/// As StackCollate for items of different lengths: along their first dimension, tensors are filled up to the
/// longest in the batch. 0-d tensors are stacked.
struct PadCollate {
  double padding_value = 0;

  template <class Item>
  Item operator()(std::vector<Item> items) const {
    return StackCollate::combine(std::move(items), [this](const std::vector<at::Tensor>& parts) {
      return parts.front().dim() == 0 ? at::stack(parts)
                                      : at::pad_sequence(parts, /*batch_first=*/true, padding_value);
    });
  }
};

/// Hands items on as they are.
struct NoTransform {
  template <class Item>
  Item operator()(Item item) const {
    return item;
  }
};

/// A data set for DataLoader over a source of items: `source.get(i)` gives item i and `source.size()` their
/// number (an integer or, as in torch::data, an optional). Each item goes through `transform`, and a batch
/// through `collate`. With DataLoaderOptions::num_workers, get() and transform run on several threads at once
/// and must allow that. Copies share the source.
template <class Source, class Transform = NoTransform, class Collate = StackCollate>
class ItemDataset {
 public:
  using Item = decltype(std::declval<const Transform&>()(std::declval<Source&>().get(size_t{})));
  using BatchType = decltype(std::declval<const Collate&>()(std::declval<std::vector<Item>>()));

  explicit ItemDataset(Source source, Transform transform = {}, Collate collate = {})
      : source_(std::make_shared<Source>(std::move(source))),
        transform_(std::move(transform)),
        collate_(std::move(collate)) {}

  /// @throws DataError for a torch::data source that does not know its size.
  int64_t size() const {
    if constexpr (requires { source_->size().has_value(); }) {
      const auto size = source_->size();
      if (!size)
        throw DataError({.what = "a data set that does not know its size", .hint = "Give it a size()."});
      return static_cast<int64_t>(*size);
    } else {
      return static_cast<int64_t>(source_->size());
    }
  }

  /// @throws DataError naming the sample that could not be loaded, with the original nested in it.
  BatchType get_batch(std::span<const int64_t> indices) const {
    std::vector<Item> items;
    items.reserve(indices.size());
    const int64_t count = size();
    for (const int64_t index : indices) {
      try {
        if (index < 0 || index >= count) {
          throw DataError({.what = "sample number",
                           .expected = concat("0 to ", count - 1),
                           .got = std::to_string(index),
                           .hint = "Check the sampler."});
        }
        items.push_back(transform_(source_->get(static_cast<size_t>(index))));
      } catch (const std::exception& error) {
        std::throw_with_nested(DataError({.what = concat("sample ", index, ": ", error_message(error))}));
      }
    }
    return collate_(std::move(items));
  }

 private:
  std::shared_ptr<Source> source_;  // torch::data's get() is not const, and its data sets may hold much
  Transform transform_;
  Collate collate_;
};

}  // namespace accelerate
