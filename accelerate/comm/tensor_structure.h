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

// torch::data::Example<Data, Target> and everything shaped like it, without its header.
template <class T>
concept ExampleLike = requires(T& value) {
  value.data;
  value.target;
};

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
