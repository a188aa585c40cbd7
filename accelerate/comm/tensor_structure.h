#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerate {

// Note [Tensor structures]
// A batch may be any structure of tensors: a tensor, pairs, tuples, vectors, maps, optionals,
// torch::data::Example, and these within one another. Placement, gather, pad and checks all walk it through
// for_each_tensor(). A type of your own joins in by either
//   - a member  template <class F> void for_each_tensor(F&& fn) { fn(images); fn(labels); }
//   - or a member  template <class Archive> void serialize(Archive& archive) { archive(images, labels, name);
//   }
//     which comm/serializer.h uses too, so that it is all a type needs;
//   - or a specialisation of accelerate::TensorStructure<T> with  static void for_each(T& value, F&& fn).
// Parts that are no tensors (numbers, strings) are left alone.

/// Customization point; see Note [Tensor structures].
template <class T>
struct TensorStructure;

namespace detail {

template <class T>
concept HasForEachTensor = requires(T& value) {
  value.for_each_tensor([](at::Tensor&) {});
};

template <class T>
concept HasTensorStructure = requires(T& value) {
  TensorStructure<T>::for_each(value, [](at::Tensor&) {});
};

// Takes the place of an archive and visits the tensors among the parts.
template <class F>
struct TensorVisitor {
  F& fn;
  template <class... Ts>
  void operator()(Ts&... parts);
};

template <class T>
concept HasSerializeMember = requires(T& value, TensorVisitor<void (*)(at::Tensor&)>& archive) {
  value.serialize(archive);
};

// Becomes whatever a member wants.
struct AnyPart {
  template <class T>
  operator T() const;
};

// torch::data::Example<Data, Target> and everything shaped like it, without its header: these two members and
// no more, since a third would be overlooked.
template <class T>
concept ExampleLike = requires(T& value) {
  value.data;
  value.target;
}
&&!(std::is_aggregate_v<T> && requires { T{AnyPart{}, AnyPart{}, AnyPart{}}; });

}  // namespace detail

/// Calls `fn(at::Tensor&)` for every defined or undefined tensor in `value`, in a fixed order.
template <class T, class F>
void for_each_tensor(T& value, F&& fn) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    fn(value);
  } else if constexpr (detail::HasTensorStructure<T>) {
    TensorStructure<T>::for_each(value, fn);
  } else if constexpr (detail::HasForEachTensor<T>) {
    value.for_each_tensor(fn);
  } else if constexpr (detail::HasSerializeMember<T>) {
    detail::TensorVisitor<F> visitor{fn};
    value.serialize(visitor);
  } else if constexpr (detail::ExampleLike<T>) {
    for_each_tensor(value.data, fn);
    for_each_tensor(value.target, fn);
  }
  // any other type holds no tensors
}

template <class F>
template <class... Ts>
void detail::TensorVisitor<F>::operator()(Ts&... parts) {
  (accelerate::for_each_tensor(parts, fn), ...);
}

template <class A, class B>
struct TensorStructure<std::pair<A, B>> {
  template <class F>
  static void for_each(std::pair<A, B>& value, F&& fn) {
    for_each_tensor(value.first, fn);
    for_each_tensor(value.second, fn);
  }
};

template <class... Ts>
struct TensorStructure<std::tuple<Ts...>> {
  template <class F>
  static void for_each(std::tuple<Ts...>& value, F&& fn) {
    std::apply([&](auto&... parts) { (for_each_tensor(parts, fn), ...); }, value);
  }
};

template <class T, class A>
struct TensorStructure<std::vector<T, A>> {
  template <class F>
  static void for_each(std::vector<T, A>& value, F&& fn) {
    if constexpr (!std::is_arithmetic_v<T>) {
      for (T& part : value) for_each_tensor(part, fn);
    }
  }
};

template <class T, size_t N>
struct TensorStructure<std::array<T, N>> {
  template <class F>
  static void for_each(std::array<T, N>& value, F&& fn) {
    for (T& part : value) for_each_tensor(part, fn);
  }
};

template <class K, class V, class C, class A>
struct TensorStructure<std::map<K, V, C, A>> {
  template <class F>
  static void for_each(std::map<K, V, C, A>& value, F&& fn) {
    for (auto& [key, part] : value) for_each_tensor(part, fn);
  }
};

/// Walked in the order of the keys, so that all ranks see the same order.
template <class K, class V, class H, class E, class A>
struct TensorStructure<std::unordered_map<K, V, H, E, A>> {
  template <class F>
  static void for_each(std::unordered_map<K, V, H, E, A>& value, F&& fn) {
    std::map<K, V*> sorted;
    for (auto& [key, part] : value) sorted.emplace(key, &part);
    for (auto& [key, part] : sorted) for_each_tensor(*part, fn);
  }
};

template <class T>
struct TensorStructure<std::optional<T>> {
  template <class F>
  static void for_each(std::optional<T>& value, F&& fn) {
    if (value) for_each_tensor(*value, fn);
  }
};

namespace detail {

// True if nothing but tensors is in a T, as far as its type tells: a for_each_tensor member is believed.
template <class T>
struct HoldsOnlyTensors
    : std::bool_constant<std::is_same_v<T, at::Tensor> || HasForEachTensor<T> || HasSerializeMember<T>> {};
template <ExampleLike T>
struct HoldsOnlyTensors<T>
    : std::conjunction<HoldsOnlyTensors<decltype(T::data)>, HoldsOnlyTensors<decltype(T::target)>> {};
template <class A, class B>
struct HoldsOnlyTensors<std::pair<A, B>> : std::conjunction<HoldsOnlyTensors<A>, HoldsOnlyTensors<B>> {};
template <class... Ts>
struct HoldsOnlyTensors<std::tuple<Ts...>> : std::conjunction<HoldsOnlyTensors<Ts>...> {};
template <class T, class A>
struct HoldsOnlyTensors<std::vector<T, A>> : HoldsOnlyTensors<T> {};
template <class T, size_t N>
struct HoldsOnlyTensors<std::array<T, N>> : HoldsOnlyTensors<T> {};
template <class T>
struct HoldsOnlyTensors<std::optional<T>> : HoldsOnlyTensors<T> {};
template <class K, class V, class C, class A>
struct HoldsOnlyTensors<std::map<K, V, C, A>> : HoldsOnlyTensors<V> {};
template <class K, class V, class H, class E, class A>
struct HoldsOnlyTensors<std::unordered_map<K, V, H, E, A>> : HoldsOnlyTensors<V> {};

// Takes the place of an archive and refuses to compile for parts that are no tensors.
struct OnlyTensors {
  template <class... Ts>
  void operator()(const Ts&...) const {
    static_assert((HoldsOnlyTensors<Ts>::value && ...),
                  "accelerate: a part of an item is no tensor; give the data set a collate of your own, or a "
                  "transform that makes tensors of it");
  }
};

}  // namespace detail

/// All defined tensors in `value`.
template <class T>
std::vector<at::Tensor> collect_tensors(T& value) {
  std::vector<at::Tensor> out;
  for_each_tensor(value, [&](at::Tensor& tensor) {
    if (tensor.defined()) out.push_back(tensor);
  });
  return out;
}

/// A copy of `value` with every defined tensor replaced by `fn(tensor)`.
template <class T, class F>
T map_tensors(T value, F&& fn) {
  for_each_tensor(value, [&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = fn(tensor);
  });
  return value;
}

}  // namespace accelerate
