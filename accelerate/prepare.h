#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "accelerate/data/prepared_data_loader.h"
#include "accelerate/optim/prepared_optimizer.h"
#include "accelerate/optim/prepared_scheduler.h"
#include "accelerate/strategy/prepared_model.h"

// How Accelerator::prepare() turns each argument into its handle, whatever the order of the arguments.
namespace accelerate {

class Accelerator;

namespace detail {

// The order in which kinds are prepared: an optimizer needs its model, a scheduler its optimizer.
enum class PrepareStage { kLoader, kModel, kOptimizer, kScheduler, kReady };

template <class T>
struct IsPrepared : std::false_type {};
template <class T>
struct IsPrepared<PreparedModel<T>> : std::true_type {};
template <class T>
struct IsPrepared<PreparedOptimizer<T>> : std::true_type {};
template <class T>
struct IsPrepared<PreparedDataLoader<T>> : std::true_type {};
template <class T>
struct IsPrepared<PreparedScheduler<T>> : std::true_type {};

template <class T>
struct LoaderDataset {};
template <class D>
struct LoaderDataset<DataLoader<D>> {
  using Type = D;
};

// The object itself, held by value, by shared_ptr or by unique_ptr.
template <class T>
struct Pointee {
  using Type = T;
};
template <class T>
struct Pointee<std::shared_ptr<T>> {
  using Type = T;
};
template <class T>
struct Pointee<std::unique_ptr<T>> {
  using Type = T;
};

}  // namespace detail

/// A module holder (TORCH_MODULE) or a shared_ptr to a module.
template <class T>
concept PreparableModel = requires {
  typename detail::ModulePointer<T>::Impl;
};

/// A torch optimizer, or a shared_ptr or unique_ptr to one.
template <class T>
concept PreparableOptimizer = std::is_base_of_v<torch::optim::Optimizer, typename detail::Pointee<T>::Type>;

/// A torch scheduler, or a shared_ptr or unique_ptr to one.
template <class T>
concept PreparableScheduler =
    std::is_base_of_v<torch::optim::LRScheduler, typename detail::Pointee<T>::Type> ||
    std::is_base_of_v<torch::optim::ReduceLROnPlateauScheduler, typename detail::Pointee<T>::Type>;

/// An accelerate::DataLoader.
template <class T>
concept PreparableLoader = requires {
  typename detail::LoaderDataset<T>::Type;
};

/// Already a handle: preparing it again changes nothing.
template <class T>
concept AlreadyPrepared = detail::IsPrepared<T>::value;

/// Anything that Accelerator::prepare() takes.
template <class T>
concept Preparable = PreparableModel<T> || PreparableOptimizer<T> || PreparableScheduler<T> ||
    PreparableLoader<T> || AlreadyPrepared<T>;

namespace detail {

template <class T>
constexpr PrepareStage prepare_stage() {
  if constexpr (AlreadyPrepared<T>) return PrepareStage::kReady;
  if constexpr (PreparableLoader<T>) return PrepareStage::kLoader;
  if constexpr (PreparableModel<T>) return PrepareStage::kModel;
  if constexpr (PreparableOptimizer<T>) return PrepareStage::kOptimizer;
  return PrepareStage::kScheduler;
}

template <class T>
struct PreparedTypeOf;
template <AlreadyPrepared T>
struct PreparedTypeOf<T> {
  using Type = T;
};
template <PreparableLoader T>
struct PreparedTypeOf<T> {
  using Type = PreparedDataLoader<typename LoaderDataset<T>::Type>;
};
template <PreparableModel T>
struct PreparedTypeOf<T> {
  using Type = PreparedModel<T>;
};
template <PreparableOptimizer T>
struct PreparedTypeOf<T> {
  using Type = PreparedOptimizer<typename Pointee<T>::Type>;
};
template <PreparableScheduler T>
struct PreparedTypeOf<T> {
  using Type = PreparedScheduler<typename Pointee<T>::Type>;
};

// Samples of a loader's data set; nullopt for a stream.
template <class Dataset>
std::optional<int64_t> dataset_size(const Dataset& dataset) {
  if constexpr (StreamedDataset<Dataset>) {
    return std::nullopt;
  } else {
    return dataset.size();
  }
}

// The handle type for an argument of type T.
template <class T>
using PreparedType = typename PreparedTypeOf<std::remove_cvref_t<T>>::Type;

// An object that was given by value is owned by its handle; one given as a variable stays where it is, since
// a scheduler may refer to it, and must outlive the handle.
template <class T>
std::shared_ptr<typename Pointee<std::remove_cvref_t<T>>::Type> hold(T&& object) {
  using Plain = std::remove_cvref_t<T>;
  using Object = typename Pointee<Plain>::Type;
  if constexpr (std::is_same_v<Plain, std::shared_ptr<Object>>) {
    return std::forward<T>(object);
  } else if constexpr (std::is_same_v<Plain, std::unique_ptr<Object>>) {
    static_assert(!std::is_lvalue_reference_v<T>,
                  "accelerate: give a unique_ptr to prepare() with std::move");
    return std::shared_ptr<Object>(std::move(object));
  } else if constexpr (std::is_lvalue_reference_v<T>) {
    return std::shared_ptr<Object>(&object, [](Object*) {});
  } else {
    return std::make_shared<Object>(std::move(object));
  }
}

}  // namespace detail
}  // namespace accelerate
