#pragma once

// Any back end against Gloo: the same inputs to both.
#include <cmath>
#include <random>
#include <sstream>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/backends.h"
#include "accelerate/comm/communicator.h"
#include "accelerate/core/strings.h"

namespace accelerate::test::fuzz {

using Tensors = std::vector<at::Tensor>;
using Op = c10d::ReduceOp::RedOpType;

// A back end of one rank, and Gloo.
struct Pair {
  c10::intrusive_ptr<c10d::Backend> tested;
  c10::intrusive_ptr<c10d::Backend> gloo;
  int rank;
  int size;
  /// Rounds half and bfloat16 more than once, and hands operations without a form of its own to Gloo, which
  /// takes contiguous tensors only.
  bool partly_gloo = false;
  /// Half and bfloat16 are rounded once at the end, not after each pair of ranks.
  bool exact_halves = true;
};

inline c10::intrusive_ptr<c10d::Backend> make(const char* name, const Store& store, int rank, int size,
                                              const std::string& prefix = {},
                                              std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const accelerate::detail::BackendRequest request{
      .store = c10::make_intrusive<c10d::PrefixStore>(prefix + name, store.c10d_store()),
      .rank = rank,
      .size = size,
      .timeout = timeout,
      .master_addr = "127.0.0.1"};
  return accelerate::detail::find_backend(name)->make(request);
}

// Catch's assertions are not thread-safe, so ranks throw instead.
inline void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

// Numbers that every rank can make for every rank: small integers, some halves in floating types.
inline at::Tensor values(at::ScalarType type, at::IntArrayRef sizes, uint64_t seed, int rank) {
  std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(rank));
  at::Tensor out = at::empty(sizes, at::kDouble);
  auto* data = out.mutable_data_ptr<double>();
  const bool floating = at::isFloatingType(type);
  for (int64_t i = 0; i < out.numel(); ++i) {
    const auto number = static_cast<int64_t>(random() % 9);
    data[i] = floating ? static_cast<double>(number - 4) / 3
                       : static_cast<double>(number) - (type == at::kByte ? 0 : 4);
  }
  return type == at::kBool ? out.gt(0) : out.to(type);
}

// One of the ways in which a tensor lies in memory.
inline at::Tensor laid_out(const at::Tensor& tensor, int layout) {
  at::Tensor out;
  switch (layout) {
    case 1: {  // every other element
      std::vector<int64_t> strides = tensor.contiguous().strides().vec();
      for (int64_t& stride : strides) stride *= 2;
      return at::empty({tensor.numel() * 2 + 1}, tensor.options())
          .as_strided(tensor.sizes(), strides)
          .copy_(tensor);
    }
    case 2:  // transposed
      if (tensor.dim() < 2) return tensor.clone();
      return tensor.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
    case 3:  // in the middle of a storage
      out =
          at::empty({tensor.numel() + 7}, tensor.options()).narrow(0, 3, tensor.numel()).view(tensor.sizes());
      out.copy_(tensor);
      return out;
    default:
      return tensor.clone();
  }
}

struct Case {
  at::ScalarType type;
  std::vector<int64_t> sizes;
  int layout;
  uint64_t seed;
  int root;
};

inline Case random_case(std::mt19937_64& random, int size) {
  static const at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                          at::kByte,  at::kInt,    at::kLong, at::kBool};
  static const int64_t kLengths[] = {0, 1, 2, 7, 33, 64, 257, 1000, 4097};
  Case out;
  out.type = kTypes[random() % std::size(kTypes)];
  const int64_t dims = static_cast<int64_t>(random() % 3);
  for (int64_t d = 0; d < dims; ++d) out.sizes.push_back(kLengths[random() % (d == 0 ? 9 : 5)]);
  if (random() % 40 == 0) out.sizes = {700000 + static_cast<int64_t>(random() % 100)};
  out.layout = static_cast<int>(random() % 4);
  out.seed = random();
  out.root = static_cast<int>(random() % static_cast<uint64_t>(size));
  return out;
}

inline std::string text(const Case& c) {
  std::ostringstream out;
  out << c10::toString(c.type) << ' ' << at::IntArrayRef(c.sizes) << " layout " << c.layout << " root "
      << c.root;
  return out.str();
}

inline Tensors all_values(const Case& c, int size) {
  Tensors out;
  for (int rank = 0; rank < size; ++rank) out.push_back(values(c.type, c.sizes, c.seed, rank));
  return out;
}

// Gloo sums half and bfloat16 with a rounding after each addition, and bools as bytes: their right answer
// comes from a wider type.
inline bool gloo_is_exact(at::ScalarType type) {
  return type != at::kHalf && type != at::kBFloat16 && type != at::kBool;
}

inline at::Tensor expected(const Case& c, Op op, Pair& pair) {
  const Tensors all = all_values(c, pair.size);
  if (gloo_is_exact(c.type) && op != c10d::ReduceOp::AVG) {
    Tensors mine = {all[static_cast<size_t>(pair.rank)].clone()};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    pair.gloo->allreduce(mine, options)->wait();
    return mine[0];
  }
  const at::ScalarType wide = c.type == at::kBool     ? at::kBool
                              : c.type == at::kDouble ? at::kDouble
                                                      : at::kFloat;
  at::Tensor out = all[0].to(wide);
  for (size_t i = 1; i < all.size(); ++i) {
    const at::Tensor next = all[i].to(wide);
    if (c.type == at::kBool) {
      const bool any = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::MAX || op == c10d::ReduceOp::BOR;
      out = op == c10d::ReduceOp::BXOR ? out.logical_xor(next)
            : any                      ? out.logical_or(next)
                                       : out.logical_and(next);
    } else if (op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG) {
      out = out + next;
    } else if (op == c10d::ReduceOp::PRODUCT) {
      out = out * next;
    } else {
      out = op == c10d::ReduceOp::MIN ? at::minimum(out, next) : at::maximum(out, next);
    }
  }
  if (op == c10d::ReduceOp::AVG) out = out / pair.size;
  return out.to(c.type);
}

inline Op random_op(at::ScalarType type, std::mt19937_64& random) {
  static const Op kFloating[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                                 c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  static const Op kIntegral[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN,
                                 c10d::ReduceOp::MAX, c10d::ReduceOp::BAND,    c10d::ReduceOp::BOR,
                                 c10d::ReduceOp::BXOR};
  const uint64_t at = random();
  return at::isFloatingType(type) ? kFloating[at % std::size(kFloating)]
                                  : kIntegral[at % std::size(kIntegral)];
}

inline bool same(const Pair& pair, const at::Tensor& got, const at::Tensor& want) {
  if (got.scalar_type() != want.scalar_type() || got.sizes() != want.sizes()) return false;
  if (got.scalar_type() == at::kFloat || got.scalar_type() == at::kDouble) {
    return at::allclose(got, want, 1e-5, 1e-6);
  }
  if ((pair.partly_gloo || !pair.exact_halves) && at::isFloatingType(got.scalar_type())) {
    // One rounding of a number near the largest partial result, for each rank; summands are at most 4/3.
    const double unit = got.scalar_type() == at::kHalf ? 0x1p-11 : 0x1p-8;
    const double largest = unit * pair.size * std::pow(1.4, pair.size);
    return at::allclose(got.to(at::kFloat), want.to(at::kFloat), unit * pair.size, largest);
  }
  return got.equal(want);
}

inline void fuzz_reductions(Pair& pair, std::mt19937_64& random, const Case& c) {
  const Op op = random_op(c.type, random);
  const at::Tensor want = expected(c, op, pair);
  const std::string what = concat(" by ", static_cast<int>(op), " of ", text(c));
  const at::Tensor mine = values(c.type, c.sizes, c.seed, pair.rank);
  {
    Tensors tensors = {laid_out(mine, c.layout)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    const auto work = pair.tested->allreduce(tensors, options);
    work->wait();
    expect(same(pair, tensors[0], want), "allreduce" + what);
    expect(work->isCompleted() && work->isSuccess() && work->wait(), "work of allreduce");
    expect(work->result()[0].is_same(tensors[0]), "result of allreduce");
    expect(work->getFuture()->value().toTensorVector()[0].is_same(tensors[0]), "future of allreduce");
  }
  {
    Tensors tensors = {laid_out(mine, pair.partly_gloo ? 0 : c.layout)};
    c10d::ReduceOptions options;
    options.reduceOp = op;
    options.rootRank = c.root;
    pair.tested->reduce(tensors, options)->wait();
    if (pair.rank == c.root) {
      expect(same(pair, tensors[0], want), "reduce" + what);
    } else {  // Gloo writes to the others' tensors too
      expect(pair.partly_gloo || same(pair, tensors[0], mine), "reduce at another rank" + what);
    }
  }
  {
    Tensors tensors = {laid_out(mine, c.layout), laid_out(mine, 0), at::empty({0}, mine.options())};
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = op;
    pair.tested->allreduce_coalesced(tensors, options)->wait();
    expect(same(pair, tensors[0], want) && same(pair, tensors[1], want), "allreduce_coalesced" + what);
  }
  // reduce_scatter of rank-many parts: part r is what all_reduce of that part would give.
  Tensors inputs;
  at::Tensor part;
  for (int r = 0; r < pair.size; ++r) {
    Case of_part = c;
    of_part.seed = c.seed + static_cast<uint64_t>(r);
    inputs.push_back(values(c.type, c.sizes, of_part.seed, pair.rank));
    const at::Tensor reduced = expected(of_part, op, pair);
    if (r == pair.rank) part = reduced;
  }
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  {
    Tensors outputs = {laid_out(at::zeros_like(mine), c.layout)};
    std::vector<Tensors> lists = {inputs};
    for (at::Tensor& input : lists[0]) input = laid_out(input, c.layout);
    pair.tested->reduce_scatter(outputs, lists, options)->wait();
    expect(same(pair, outputs[0], part), "reduce_scatter" + what);
  }
  at::Tensor joined = laid_out(at::stack(inputs), c.layout);
  at::Tensor output = laid_out(at::zeros_like(mine), c.layout);
  pair.tested->_reduce_scatter_base(output, joined, options)->wait();
  expect(same(pair, output, part), "_reduce_scatter_base" + what);
}

inline void fuzz_movements(Pair& pair, const Case& c) {
  const Tensors all = all_values(c, pair.size);
  const at::Tensor& mine = all[static_cast<size_t>(pair.rank)];
  const auto size = static_cast<size_t>(pair.size);
  const std::string what = " of " + text(c);
  const auto empties = [&] {
    Tensors out;
    for (size_t i = 0; i < size; ++i) out.push_back(laid_out(at::zeros_like(mine), c.layout));
    return out;
  };
  const auto equal = [&](const Tensors& got) {
    for (size_t i = 0; i < size; ++i) {
      if (!got[i].equal(all[i])) return false;
    }
    return true;
  };
  {
    Tensors ours = {laid_out(mine, c.layout)};
    Tensors theirs = {mine.clone()};
    c10d::BroadcastOptions options;
    options.rootRank = c.root;
    pair.tested->broadcast(ours, options)->wait();
    pair.gloo->broadcast(theirs, options)->wait();
    expect(ours[0].equal(theirs[0]) && ours[0].equal(all[static_cast<size_t>(c.root)]), "broadcast" + what);
  }
  Tensors inputs = {laid_out(mine, c.layout)};
  {
    std::vector<Tensors> outputs = {empties()};
    pair.tested->allgather(outputs, inputs)->wait();
    expect(equal(outputs[0]), "allgather" + what);
    at::Tensor joined = laid_out(at::zeros_like(at::stack(all)), c.layout);
    pair.tested->_allgather_base(joined, inputs[0])->wait();
    expect(joined.equal(at::stack(all)), "_allgather_base" + what);
  }
  const int layout = pair.partly_gloo ? 0 : c.layout;
  inputs = {laid_out(mine, layout)};
  const auto empties_for_root = [&] {
    Tensors out;
    for (size_t i = 0; i < size; ++i) out.push_back(laid_out(at::zeros_like(mine), layout));
    return out;
  };
  {
    std::vector<Tensors> outputs;
    if (pair.rank == c.root) outputs.push_back(empties_for_root());
    c10d::GatherOptions options;
    options.rootRank = c.root;
    pair.tested->gather(outputs, inputs, options)->wait();
    if (pair.rank == c.root) expect(equal(outputs[0]), "gather" + what);
  }
  {
    Tensors outputs = {laid_out(at::zeros_like(mine), layout)};
    std::vector<Tensors> lists;
    if (pair.rank == c.root) {
      lists.emplace_back();
      for (const at::Tensor& tensor : all) lists[0].push_back(laid_out(tensor, layout));
    }
    c10d::ScatterOptions options;
    options.rootRank = c.root;
    pair.tested->scatter(outputs, lists, options)->wait();
    expect(outputs[0].equal(mine), "scatter" + what);
  }
  {
    // Rank p sends p + q + k rows to q.
    const int64_t extra = static_cast<int64_t>(c.seed % 50);
    std::vector<int64_t> sent;
    std::vector<int64_t> taken;
    int64_t sent_rows = 0;
    int64_t taken_rows = 0;
    for (int q = 0; q < pair.size; ++q) {
      sent.push_back(extra % (q + 2) + pair.rank);
      taken.push_back(extra % (pair.rank + 2) + q);
      sent_rows += sent.back();
      taken_rows += taken.back();
    }
    at::Tensor from = laid_out(values(c.type, {sent_rows, 5}, c.seed, pair.rank), layout);
    at::Tensor ours = laid_out(values(c.type, {taken_rows, 5}, 1, 0).zero_(), layout);
    at::Tensor theirs = at::zeros({taken_rows, 5}, ours.options());
    at::Tensor plain = from.contiguous();
    for (const auto& [backend, to, source] :
         {std::tuple(pair.tested, ours, from), std::tuple(pair.gloo, theirs, plain)}) {
      auto to_copy = to;
      auto source_copy = source;
      auto taken_copy = taken;  // Gloo may change them
      auto sent_copy = sent;
      backend->alltoall_base(to_copy, source_copy, taken_copy, sent_copy)->wait();
    }
    expect(ours.equal(theirs), "alltoall_base" + what);
    Tensors pieces = from.split_with_sizes(sent);
    Tensors got;
    for (const int64_t rows : taken) got.push_back(at::zeros({rows, 5}, ours.options()));
    pair.tested->alltoall(got, pieces)->wait();
    expect(at::cat(got).equal(theirs), "alltoall" + what);
  }
  pair.tested->barrier()->wait();
}

}  // namespace accelerate::test::fuzz
