// MPI's non-blocking calls, its data types and operations.
#include <algorithm>
#include <array>

#include "accelerate/comm/mpi/handles_internal.h"
#include "accelerate/comm/shm/peers.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::mpi {
namespace {

constexpr auto kElements = static_cast<size_t>(Element::kBool) + 1;
constexpr auto kReductions = static_cast<size_t>(Reduction::kXor) + 1;

/// How elements travel. Half precision, which MPI does not know, goes as integers that only our own
/// operations look into.
MPI_Datatype type_of(Element element) {
  switch (element) {
    case Element::kFloat:
      return MPI_FLOAT;
    case Element::kDouble:
      return MPI_DOUBLE;
    case Element::kHalf:
    case Element::kBFloat16:
      return MPI_UINT16_T;
    case Element::kInt8:
      return MPI_INT8_T;
    case Element::kUint8:
    case Element::kBool:
      return MPI_UINT8_T;
    case Element::kInt16:
      return MPI_INT16_T;
    case Element::kInt32:
      return MPI_INT32_T;
    case Element::kInt64:
      return MPI_INT64_T;
    case Element::kByte:
      break;
  }
  return MPI_BYTE;
}

/// inout[i] = in[i] op inout[i], by the kernels of the shm back end.
template <Element kElement, Reduction kReduction>
void apply(void* in, void* inout, int* length, MPI_Datatype* /*type*/) {
  const std::array<const void*, 2> inputs = {in, inout};
  const std::array<void*, 1> outputs = {inout};
  shm::reduce(kElement, kReduction, inputs, outputs, static_cast<size_t>(*length));
}

template <Element kElement>
MPI_User_function* function_for(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return apply<kElement, Reduction::kSum>;
    case Reduction::kProduct:
      return apply<kElement, Reduction::kProduct>;
    case Reduction::kMin:
      return apply<kElement, Reduction::kMin>;
    case Reduction::kMax:
      return apply<kElement, Reduction::kMax>;
    case Reduction::kAnd:
      return apply<kElement, Reduction::kAnd>;
    case Reduction::kOr:
      return apply<kElement, Reduction::kOr>;
    case Reduction::kXor:
      return apply<kElement, Reduction::kXor>;
    default:
      return nullptr;
  }
}

/// Operations of ours: on half precision, on bools, and where MPI leaves open what becomes of a NaN. Null
/// where one of MPI's will do.
MPI_User_function* own_function(Element element, Reduction reduction) {
  const bool picks = reduction == Reduction::kMin || reduction == Reduction::kMax;
  switch (element) {
    case Element::kHalf:
      return function_for<Element::kHalf>(reduction);
    case Element::kBFloat16:
      return function_for<Element::kBFloat16>(reduction);
    case Element::kBool:
      return function_for<Element::kBool>(reduction);
    case Element::kFloat:
      return picks ? function_for<Element::kFloat>(reduction) : nullptr;
    case Element::kDouble:
      return picks ? function_for<Element::kDouble>(reduction) : nullptr;
    default:
      return nullptr;
  }
}

MPI_Op library_operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return MPI_SUM;
    case Reduction::kProduct:
      return MPI_PROD;
    case Reduction::kMin:
      return MPI_MIN;
    case Reduction::kMax:
      return MPI_MAX;
    case Reduction::kAnd:
      return MPI_BAND;
    case Reduction::kOr:
      return MPI_BOR;
    case Reduction::kXor:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

// Made when first needed; only the progress thread comes here.
struct OwnOperations {
  std::array<std::array<MPI_Op, kReductions>, kElements> made;
  OwnOperations() {
    for (auto& row : made) row.fill(MPI_OP_NULL);
  }
};

OwnOperations& own_operations() {
  static OwnOperations all;
  return all;
}

MPI_Op operation_of(Element element, Reduction reduction) {
  MPI_User_function* const function = own_function(element, reduction);
  if (function == nullptr) return library_operation(reduction);
  MPI_Op& made = own_operations().made[static_cast<size_t>(element)][static_cast<size_t>(reduction)];
  if (made == MPI_OP_NULL) check(MPI_Op_create(function, /*commute=*/1, &made), "MPI_Op_create");
  return made;
}

/// Bytes as MPI counts them: one element of a type of their length where they are too many for a count.
class Bytes {
 public:
  Bytes(size_t bytes, size_t largest) : count_(static_cast<int>(bytes)) {
    if (bytes <= largest) return;
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    const size_t full = bytes / largest;
    check(MPI_Type_contiguous(static_cast<int>(largest), MPI_BYTE, &block), "MPI_Type_contiguous");
    check(MPI_Type_contiguous(static_cast<int>(full), block, &blocks), "MPI_Type_contiguous");
    const std::array<int, 2> lengths = {1, static_cast<int>(bytes % largest)};
    const std::array<MPI_Aint, 2> places = {0, static_cast<MPI_Aint>(full * largest)};
    const std::array<MPI_Datatype, 2> types = {blocks, MPI_BYTE};
    check(MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &made_),
          "MPI_Type_create_struct");
    check(MPI_Type_commit(&made_), "MPI_Type_commit");
    MPI_Type_free(&blocks);
    MPI_Type_free(&block);
    count_ = 1;
  }
  // MPI keeps a freed type until the calls that use it are over.
  ~Bytes() {
    if (made_ != MPI_DATATYPE_NULL) MPI_Type_free(&made_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return made_ == MPI_DATATYPE_NULL ? MPI_BYTE : made_; }

 private:
  int count_;
  MPI_Datatype made_ = MPI_DATATYPE_NULL;
};

std::byte* at(void* data, size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
const std::byte* at(const void* data, size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

MPI_Request* next(Posted& posted) {
  return &posted.pending.emplace_back().request;
}

/// Calls `each(first, count)` for runs of at most `largest`.
template <class Each>
void in_pieces(size_t count, size_t largest, const Each& each) {
  for (size_t first = 0; first < count; first += largest) {
    each(first, static_cast<int>(std::min(largest, count - first)));
  }
}

void receive_from(Posted& posted, void* data, size_t bytes, int peer, int tag) {
  const Bytes as_mpi(bytes, posted.comm->largest_count);
  Pending& pending = posted.pending.emplace_back();
  check(MPI_Irecv(data, as_mpi.count(), as_mpi.type(), peer, tag, posted.comm->handle, &pending.request),
        "MPI_Irecv");
  pending.receives = bytes;
}

void send_to(Posted& posted, const void* data, size_t bytes, int peer, int tag) {
  const Bytes as_mpi(bytes, posted.comm->largest_count);
  check(MPI_Isend(data, as_mpi.count(), as_mpi.type(), peer, tag, posted.comm->handle, next(posted)),
        "MPI_Isend");
}

void check_tag(int tag, const Posted& posted) {
  if (tag >= 0 && tag < posted.comm->part_tag) return;
  throw ConfigError({.what = "a message over MPI",
                     .expected = concat("a tag from 0 to ", posted.comm->part_tag - 1),
                     .got = std::to_string(tag),
                     .rank = posted.comm->rank});
}

}  // namespace

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw shm::PeerError({.what = concat(call, " failed"), .got = std::string(text.data())});
}

bool is_cuda_aware() {
#ifdef MPIX_CUDA_AWARE_SUPPORT
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

void free_operations() {
  for (auto& row : own_operations().made) {
    for (MPI_Op& made : row) {
      if (made != MPI_OP_NULL) MPI_Op_free(&made);
    }
  }
}

void Calls::all_reduce(void* data, size_t count, Element element, Reduction reduction) {
  const size_t bytes = shm::element_bytes(element);
  const MPI_Op operation = operation_of(element, reduction);
  in_pieces(count, posted_.comm->largest_count, [&](size_t first, int many) {
    check(MPI_Iallreduce(MPI_IN_PLACE, at(data, first * bytes), many, type_of(element), operation,
                         posted_.comm->handle, next(posted_)),
          "MPI_Iallreduce");
  });
}

void Calls::reduce(const void* from, void* to, size_t count, Element element, Reduction reduction, int root) {
  const size_t bytes = shm::element_bytes(element);
  const MPI_Op operation = operation_of(element, reduction);
  in_pieces(count, posted_.comm->largest_count, [&](size_t first, int many) {
    check(MPI_Ireduce(at(from, first * bytes), at(to, first * bytes), many, type_of(element), operation, root,
                      posted_.comm->handle, next(posted_)),
          "MPI_Ireduce");
  });
}

void Calls::reduce_scatter(const void* from, void* to, size_t count, Element element, Reduction reduction) {
  if (count == 0) return;
  const auto size = static_cast<size_t>(posted_.comm->size);
  if (count <= posted_.comm->largest_count / size) {
    check(MPI_Ireduce_scatter_block(from, to, static_cast<int>(count), type_of(element),
                                    operation_of(element, reduction), posted_.comm->handle, next(posted_)),
          "MPI_Ireduce_scatter_block");
    return;
  }
  for (size_t root = 0; root < size; ++root) {
    reduce(at(from, root * count * shm::element_bytes(element)), to, count, element, reduction,
           static_cast<int>(root));
  }
}

void Calls::broadcast(void* data, size_t bytes, int root) {
  in_pieces(bytes, posted_.comm->largest_count, [&](size_t first, int many) {
    check(MPI_Ibcast(at(data, first), many, MPI_BYTE, root, posted_.comm->handle, next(posted_)),
          "MPI_Ibcast");
  });
}

void Calls::all_gather(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(posted_.comm->size);
  if (bytes <= posted_.comm->largest_count / size) {
    const int count = static_cast<int>(bytes);
    check(MPI_Iallgather(from, count, MPI_BYTE, to, count, MPI_BYTE, posted_.comm->handle, next(posted_)),
          "MPI_Iallgather");
    return;
  }
  // The root of each broadcast sends from where it has its own part; the other parts are written directly.
  for (size_t peer = 0; peer < size; ++peer) {
    const bool own = static_cast<int>(peer) == posted_.comm->rank;
    broadcast(own ? const_cast<void*>(from) : at(to, peer * bytes), bytes, static_cast<int>(peer));
  }
  receive_part(at(to, static_cast<size_t>(posted_.comm->rank) * bytes), bytes, posted_.comm->rank);
  send_part(from, bytes, posted_.comm->rank);
}

void Calls::barrier() {
  check(MPI_Ibarrier(posted_.comm->handle, next(posted_)), "MPI_Ibarrier");
}

void Calls::send(const void* data, size_t bytes, int peer, int tag) {
  check_tag(tag, posted_);
  send_to(posted_, data, bytes, peer, tag);
}

void Calls::receive(void* data, size_t bytes, int peer_or_any, int tag) {
  check_tag(tag, posted_);
  receive_from(posted_, data, bytes, peer_or_any == kAnySource ? MPI_ANY_SOURCE : peer_or_any, tag);
}

void Calls::send_part(const void* data, size_t bytes, int peer) {
  if (bytes > 0) send_to(posted_, data, bytes, peer, posted_.comm->part_tag);
}

void Calls::receive_part(void* data, size_t bytes, int peer) {
  if (bytes > 0) receive_from(posted_, data, bytes, peer, posted_.comm->part_tag);
}

}  // namespace accelerate::mpi
