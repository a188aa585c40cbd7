#include "accelerate/comm/shm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "accelerate/core/error.h"

namespace accelerate::shm {
namespace {

// A block of accumulators stays in the nearest cache while the inputs stream through.
constexpr size_t kBlock = 1024;

// Elements that are stored in one type and reduced in another.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value load(Stored stored) { return stored; }
  static Stored store(Value value) { return value; }
};

struct Bool {
  using Stored = uint8_t;
  using Value = uint8_t;
  static Value load(Stored stored) { return stored != 0; }
  static Stored store(Value value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored stored) { return std::bit_cast<float>(static_cast<uint32_t>(stored) << 16); }
  static Stored store(Value value) {  // to nearest, ties to even
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
  }
};

// The conversions of https://gist.github.com/rygorous/2156668 (half_to_float_fast4,
// float_to_half_fast3_rtne), written without branches so that the compiler can vectorise them.
struct Half {
  using Stored = uint16_t;
  using Value = float;
  static Value load(Stored stored) {
    const uint32_t magnitude = (static_cast<uint32_t>(stored) & 0x7fffu) << 13;
    const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t special = magnitude | 0x7f800000u;  // infinity and NaN
    const uint32_t bits = magnitude >= (0x7c00u << 13) ? special : scaled;
    return std::bit_cast<float>(bits | ((static_cast<uint32_t>(stored) & 0x8000u) << 16));
  }
  static Stored store(Value value) {
    const auto all = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (all >> 16) & 0x8000u;
    const uint32_t bits = all & 0x7fffffffu;
    const uint32_t special = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (bits + 0xc8000fffu + ((bits >> 13) & 1u)) >> 13;
    const uint32_t finite = bits < 0x38800000u ? small : normal;
    return static_cast<uint16_t>((bits >= 0x47800000u ? special : finite) | sign);
  }
};

// Integers wrap: unsigned arithmetic of at least 32 bits, cut off again.
template <class V>
using Unsigned = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

struct Sum {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_floating_point_v<V>) {
      return a + b;
    } else {
      return static_cast<V>(static_cast<Unsigned<V>>(a) + static_cast<Unsigned<V>>(b));
    }
  }
};
struct Product {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (std::is_floating_point_v<V>) {
      return a * b;
    } else {
      return static_cast<V>(static_cast<Unsigned<V>>(a) * static_cast<Unsigned<V>>(b));
    }
  }
};
struct Min {
  template <class V>
  static V apply(V a, V b) {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <class V>
  static V apply(V a, V b) {
    return b > a || b != b ? b : a;
  }
};
struct And {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct Or {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct Xor {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};

template <class E>
const typename E::Stored* typed(const void* data, size_t at) {
  return static_cast<const typename E::Stored*>(data) + at;
}

template <class E, class Op>
void reduce_blocks(std::span<const void* const> inputs, std::span<void* const> outputs, size_t count,
                   typename E::Value divisor) {
  using Stored = typename E::Stored;
  using Value = typename E::Value;
  alignas(64) Value sums[kBlock];
  alignas(64) Stored results[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    const Stored* first = typed<E>(inputs[0], begin);
    if (inputs.size() == 1) {
      for (size_t i = 0; i < n; ++i) sums[i] = E::load(first[i]);
    } else {
      const Stored* second = typed<E>(inputs[1], begin);
      for (size_t i = 0; i < n; ++i) sums[i] = Op::apply(E::load(first[i]), E::load(second[i]));
    }
    for (size_t k = 2; k < inputs.size(); ++k) {
      const Stored* next = typed<E>(inputs[k], begin);
      for (size_t i = 0; i < n; ++i) sums[i] = Op::apply(sums[i], E::load(next[i]));
    }
    if constexpr (std::is_floating_point_v<Value>) {
      if (divisor != 1) {
        for (size_t i = 0; i < n; ++i) sums[i] /= divisor;
      }
    }
    const Stored* done = results;
    if constexpr (std::is_same_v<Stored, Value>) {
      done = sums;
    } else {
      for (size_t i = 0; i < n; ++i) results[i] = E::store(sums[i]);
    }
    for (void* output : outputs) std::memcpy(static_cast<Stored*>(output) + begin, done, n * sizeof(Stored));
  }
}

struct Arguments {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  size_t count;
};

[[noreturn]] void refuse(Element element, Reduction reduction) {
  throw ConfigError({.what = std::string("reducing ") + name(element) + " by " + name(reduction)});
}

template <class E>
void reduce_as(Element element, Reduction reduction, const Arguments& a) {
  using Value = typename E::Value;
  switch (reduction) {
    case Reduction::kSum:
      return reduce_blocks<E, Sum>(a.inputs, a.outputs, a.count, 1);
    case Reduction::kProduct:
      return reduce_blocks<E, Product>(a.inputs, a.outputs, a.count, 1);
    case Reduction::kMin:
      return reduce_blocks<E, Min>(a.inputs, a.outputs, a.count, 1);
    case Reduction::kMax:
      return reduce_blocks<E, Max>(a.inputs, a.outputs, a.count, 1);
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<Value>) {
    if (reduction == Reduction::kAverage) {
      return reduce_blocks<E, Sum>(a.inputs, a.outputs, a.count, static_cast<Value>(a.inputs.size()));
    }
  } else {
    if (reduction == Reduction::kAnd) return reduce_blocks<E, And>(a.inputs, a.outputs, a.count, 1);
    if (reduction == Reduction::kOr) return reduce_blocks<E, Or>(a.inputs, a.outputs, a.count, 1);
    if (reduction == Reduction::kXor) return reduce_blocks<E, Xor>(a.inputs, a.outputs, a.count, 1);
  }
  refuse(element, reduction);
}

}  // namespace

const char* name(Element element) {
  switch (element) {
    case Element::kByte:
      return "bytes";
    case Element::kFloat:
      return "float";
    case Element::kDouble:
      return "double";
    case Element::kHalf:
      return "half";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kInt8:
      return "int8";
    case Element::kUint8:
      return "uint8";
    case Element::kInt16:
      return "int16";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
    case Element::kBool:
      return "bool";
  }
  return "unknown";
}

const char* name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "nothing";
    case Reduction::kSum:
      return "sum";
    case Reduction::kAverage:
      return "average";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "minimum";
    case Reduction::kMax:
      return "maximum";
    case Reduction::kAnd:
      return "bitwise and";
    case Reduction::kOr:
      return "bitwise or";
    case Reduction::kXor:
      return "bitwise xor";
  }
  return "unknown";
}

size_t element_bytes(Element element) {
  switch (element) {
    case Element::kDouble:
    case Element::kInt64:
      return 8;
    case Element::kFloat:
    case Element::kInt32:
      return 4;
    case Element::kHalf:
    case Element::kBFloat16:
    case Element::kInt16:
      return 2;
    case Element::kByte:
    case Element::kInt8:
    case Element::kUint8:
    case Element::kBool:
      return 1;
  }
  return 1;
}

bool can_reduce(Element element, Reduction reduction) {
  const bool floating = element == Element::kFloat || element == Element::kDouble ||
                        element == Element::kHalf || element == Element::kBFloat16;
  switch (reduction) {
    case Reduction::kNone:
      return false;
    case Reduction::kAverage:
      return floating;
    case Reduction::kAnd:
    case Reduction::kOr:
    case Reduction::kXor:
      return !floating && element != Element::kByte;
    default:
      return element != Element::kByte;
  }
}

void reduce(Element element, Reduction reduction, std::span<const void* const> inputs,
            std::span<void* const> outputs, size_t count) {
  const Arguments arguments{inputs, outputs, count};
  switch (element) {
    case Element::kFloat:
      return reduce_as<Plain<float>>(element, reduction, arguments);
    case Element::kDouble:
      return reduce_as<Plain<double>>(element, reduction, arguments);
    case Element::kHalf:
      return reduce_as<Half>(element, reduction, arguments);
    case Element::kBFloat16:
      return reduce_as<BFloat16>(element, reduction, arguments);
    case Element::kInt8:
      return reduce_as<Plain<int8_t>>(element, reduction, arguments);
    case Element::kUint8:
      return reduce_as<Plain<uint8_t>>(element, reduction, arguments);
    case Element::kInt16:
      return reduce_as<Plain<int16_t>>(element, reduction, arguments);
    case Element::kInt32:
      return reduce_as<Plain<int32_t>>(element, reduction, arguments);
    case Element::kInt64:
      return reduce_as<Plain<int64_t>>(element, reduction, arguments);
    case Element::kBool:
      // Sums and products of truth values are their largest and smallest.
      if (reduction == Reduction::kSum) reduction = Reduction::kOr;
      if (reduction == Reduction::kProduct) reduction = Reduction::kAnd;
      return reduce_as<Bool>(element, reduction, arguments);
    case Element::kByte:
      break;
  }
  refuse(element, reduction);
}

}  // namespace accelerate::shm
