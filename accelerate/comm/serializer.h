#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/comm/tensor_structure.h"

namespace accelerate {

// Note [Values as bytes]
// Records in shared memory and batches that the main process deals out travel as bytes of this machine's own
// kind (no versions, no byte order: they never outlive the job). Known are numbers, enums and other trivially
// copyable types (which must hold no pointers), strings, tensors (any dtype; dense, on the CPU), vectors,
// arrays, maps, pairs, tuples, optionals and torch::data::Example. A type of your own joins in by either
//   - a member  template <class Archive> void serialize(Archive& archive) { archive(id, text, image); }
//     which works in both directions and also shows its tensors to placement and gather;
//   - or a specialisation of accelerate::Serializer<T> with
//       static void save(ByteWriter& writer, const T& value);
//       static T load(ByteReader& reader);

/// Appends bytes.
class ByteWriter {
 public:
  void write(const void* data, size_t size_bytes) {
    bytes_.append(static_cast<const char*>(data), size_bytes);
  }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what a ByteWriter wrote.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  /// The next `size_bytes` bytes, in place.
  /// @throws DataError when there are fewer: the reader's type is not the writer's.
  std::span<const std::byte> take(size_t size_bytes);
  void read(void* out, size_t size_bytes) {
    const auto from = take(size_bytes);
    if (size_bytes > 0) std::memcpy(out, from.data(), size_bytes);
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

/// Customization point; see Note [Values as bytes].
template <class T>
struct Serializer;

namespace detail {

/// @throws DataError: there are more bytes than the type has.
[[noreturn]] void throw_left_over(size_t size_bytes);

struct SaveArchive {
  ByteWriter& writer;
  template <class... Ts>
  void operator()(const Ts&... parts);
};

struct LoadArchive {
  ByteReader& reader;
  template <class... Ts>
  void operator()(Ts&... parts);
};

template <class T>
concept HasSerializer = requires(ByteWriter& writer, const T& value) {
  Serializer<T>::save(writer, value);
};

}  // namespace detail

namespace detail {

// std::string_view, std::span and their like are pointers to what somebody else holds.
template <class T>
concept ViewLike = requires(const T& value) {
  value.data();
  value.size();
}
&&!requires {
  std::tuple_size<T>::value;
};

}  // namespace detail

/// Types that Note [Values as bytes] covers.
template <class T>
concept Serializable = detail::HasSerializer<T> || detail::HasSerializeMember<T> ||
    (std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !detail::ViewLike<T>);

/// Appends `value`.
template <Serializable T>
void save_value(ByteWriter& writer, const T& value) {
  if constexpr (detail::HasSerializer<T>) {
    Serializer<T>::save(writer, value);
  } else if constexpr (detail::HasSerializeMember<T>) {
    detail::SaveArchive archive{writer};
    const_cast<T&>(value).serialize(archive);  // one member for both directions; this one only reads
  } else {
    writer.write(&value, sizeof(T));
  }
}

/// The next value. T must be what was written.
template <Serializable T>
T load_value(ByteReader& reader) {
  if constexpr (detail::HasSerializer<T>) {
    return Serializer<T>::load(reader);
  } else if constexpr (detail::HasSerializeMember<T>) {
    T value{};
    detail::LoadArchive archive{reader};
    value.serialize(archive);
    return value;
  } else {
    T value;
    reader.read(&value, sizeof(T));
    return value;
  }
}

template <>
struct Serializer<at::Tensor> {
  /// @throws DataError for a tensor that is not dense.
  static void save(ByteWriter& writer, const at::Tensor& tensor);
  static at::Tensor load(ByteReader& reader);
};

template <>
struct Serializer<std::string> {
  static void save(ByteWriter& writer, const std::string& text) {
    save_value<uint64_t>(writer, text.size());
    writer.write(text.data(), text.size());
  }
  static std::string load(ByteReader& reader) {
    const auto bytes = reader.take(load_value<uint64_t>(reader));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

template <Serializable T, class A>
struct Serializer<std::vector<T, A>> {
  static constexpr bool kPlain = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
  static void save(ByteWriter& writer, const std::vector<T, A>& values) {
    save_value<uint64_t>(writer, values.size());
    if constexpr (kPlain) {
      writer.write(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) save_value<T>(writer, value);
    }
  }
  static std::vector<T, A> load(ByteReader& reader) {
    const auto count = load_value<uint64_t>(reader);
    std::vector<T, A> values;
    if constexpr (kPlain) {
      const auto bytes = reader.take(count * sizeof(T));
      values.resize(count);
      if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      for (uint64_t i = 0; i < count; ++i) values.push_back(load_value<T>(reader));
    }
    return values;
  }
};

template <Serializable T, size_t N>
requires(!std::is_trivially_copyable_v<T>) struct Serializer<std::array<T, N>> {
  static void save(ByteWriter& writer, const std::array<T, N>& values) {
    for (const T& value : values) save_value<T>(writer, value);
  }
  static std::array<T, N> load(ByteReader& reader) {
    std::array<T, N> values;
    for (T& value : values) value = load_value<T>(reader);
    return values;
  }
};

template <Serializable A, Serializable B>
struct Serializer<std::pair<A, B>> {
  static void save(ByteWriter& writer, const std::pair<A, B>& value) {
    save_value<A>(writer, value.first);
    save_value<B>(writer, value.second);
  }
  static std::pair<A, B> load(ByteReader& reader) {
    A first = load_value<A>(reader);
    B second = load_value<B>(reader);
    return {std::move(first), std::move(second)};
  }
};

template <Serializable... Ts>
struct Serializer<std::tuple<Ts...>> {
  static void save(ByteWriter& writer, const std::tuple<Ts...>& value) {
    std::apply([&](const auto&... parts) { (save_value<Ts>(writer, parts), ...); }, value);
  }
  static std::tuple<Ts...> load(ByteReader& reader) {
    return std::tuple<Ts...>{load_value<Ts>(reader)...};  // braces: from left to right
  }
};

template <Serializable T>
struct Serializer<std::optional<T>> {
  static void save(ByteWriter& writer, const std::optional<T>& value) {
    save_value<bool>(writer, value.has_value());
    if (value) save_value<T>(writer, *value);
  }
  static std::optional<T> load(ByteReader& reader) {
    if (!load_value<bool>(reader)) return std::nullopt;
    return load_value<T>(reader);
  }
};

namespace detail {

template <class Map>
struct MapSerializer {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static void save(ByteWriter& writer, const Map& map) {
    save_value<uint64_t>(writer, map.size());
    for (const auto& [key, value] : map) {
      save_value<Key>(writer, key);
      save_value<Value>(writer, value);
    }
  }
  static Map load(ByteReader& reader) {
    Map map;
    for (auto left = load_value<uint64_t>(reader); left > 0; --left) {
      Key key = load_value<Key>(reader);
      map.emplace(std::move(key), load_value<Value>(reader));
    }
    return map;
  }
};

}  // namespace detail

template <Serializable K, Serializable V, class C, class A>
struct Serializer<std::map<K, V, C, A>> : detail::MapSerializer<std::map<K, V, C, A>> {};
template <Serializable K, Serializable V, class H, class E, class A>
struct Serializer<std::unordered_map<K, V, H, E, A>>
    : detail::MapSerializer<std::unordered_map<K, V, H, E, A>> {};

/// torch::data::Example and what is shaped like it.
template <detail::ExampleLike T>
requires(!detail::HasSerializeMember<T> && !std::is_trivially_copyable_v<T>) struct Serializer<T> {
  static void save(ByteWriter& writer, const T& value) {
    save_value(writer, value.data);
    save_value(writer, value.target);
  }
  static T load(ByteReader& reader) {
    auto data = load_value<decltype(T::data)>(reader);
    auto target = load_value<decltype(T::target)>(reader);
    return T{std::move(data), std::move(target)};
  }
};

template <class... Ts>
void detail::SaveArchive::operator()(const Ts&... parts) {
  static_assert((Serializable<Ts> && ...),
                "accelerate: a part is of a type without a serializer; see Note [Values as bytes]");
  (save_value<Ts>(writer, parts), ...);
}

template <class... Ts>
void detail::LoadArchive::operator()(Ts&... parts) {
  ((parts = load_value<Ts>(reader)), ...);
}

namespace detail {

/// A value as bytes.
template <Serializable T>
std::string to_bytes(const T& value) {
  ByteWriter writer;
  save_value<T>(writer, value);
  return writer.take();
}

/// The reverse.
/// @throws DataError where the bytes are not those of a T.
template <Serializable T>
T from_bytes(const std::string& bytes) {
  ByteReader reader(std::as_bytes(std::span(bytes.data(), bytes.size())));
  T value = load_value<T>(reader);
  if (reader.left() != 0) throw_left_over(reader.left());
  return value;
}

}  // namespace detail

}  // namespace accelerate
