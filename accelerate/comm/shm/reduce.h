#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace accelerate::shm {

enum class Element : uint32_t {
  kByte,  ///< bytes of any type, only moved
  kFloat,
  kDouble,
  kHalf,
  kBFloat16,
  kInt8,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
};

enum class Reduction : uint32_t { kNone, kSum, kAverage, kProduct, kMin, kMax, kAnd, kOr, kXor };

const char* name(Element element);
const char* name(Reduction reduction);
size_t element_bytes(Element element);

/// Averages want a floating type, bitwise reductions an integer or bool.
bool can_reduce(Element element, Reduction reduction);

/// outputs[*][i] = inputs[0][i] op inputs[1][i] op ..., in this order, for i < count. An output may be one of
/// the inputs; else nothing overlaps. Pointers are aligned to the element. Half and bfloat16 are reduced in
/// float and rounded once at the end; integers wrap; a sum of bools is their "or", a product their "and";
/// minimum and maximum of a NaN is NaN.
void reduce(Element element, Reduction reduction, std::span<const void* const> inputs,
            std::span<void* const> outputs, size_t count);

}  // namespace accelerate::shm
