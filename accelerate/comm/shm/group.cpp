#include "accelerate/comm/shm/group.h"

#include <algorithm>
#include <cstring>

#include "accelerate/comm/shm/futex.h"
#include "accelerate/core/strings.h"

namespace accelerate::shm {
namespace {

enum class Operation : uint32_t {
  kNone,
  kBarrier,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kAllToAll,
};

const char* name(uint32_t operation) {
  static constexpr const char* kNames[] = {"nothing",        "barrier",   "all_reduce", "reduce",
                                           "reduce_scatter", "broadcast", "all_gather", "gather",
                                           "scatter",        "all_to_all"};
  return operation < std::size(kNames) ? kNames[operation] : "unknown";
}

std::string describe(const Call& call) {
  const auto element = static_cast<Element>(call.element);
  const auto reduction = static_cast<Reduction>(call.reduction);
  std::string text = name(call.operation);
  if (call.count > 0 || call.operation != static_cast<uint32_t>(Operation::kBarrier)) {
    text += concat(" of ", call.count, " ", name(element));
  }
  if (reduction != Reduction::kNone) text += concat(" by ", name(reduction));
  if (call.root >= 0) text += concat(" with root ", call.root);
  return text;
}

Call make_call(Operation operation, size_t count, Element element = Element::kByte,
               Reduction reduction = Reduction::kNone, int root = -1) {
  return {.operation = static_cast<uint32_t>(operation),
          .element = static_cast<uint32_t>(element),
          .reduction = static_cast<uint32_t>(reduction),
          .root = root,
          .count = count};
}

std::vector<RankBlock*> blocks_of(const SharedMemoryMapping& segment, const Layout& layout, int size) {
  std::vector<RankBlock*> out;
  for (int rank = 0; rank < size; ++rank) {
    out.push_back(reinterpret_cast<RankBlock*>(segment.data() + layout.rank_block(rank)));
  }
  return out;
}

template <class T>
T* advance(T* data, size_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + bytes;
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// The part of `count` elements that `rank` reduces: whole cache lines of even the smallest element.
struct Part {
  Part(size_t count, int rank, int size) {
    const size_t each =
        Layout::round_up((count + static_cast<size_t>(size) - 1) / static_cast<size_t>(size), kCacheLine);
    begin = std::min(count, each * static_cast<size_t>(rank));
    end = std::min(count, begin + each);
  }
  size_t begin;
  size_t end;
};

// Up to here every rank reduces everything, which takes one barrier instead of two.
constexpr size_t kSmallBytes = 16384;

}  // namespace

size_t Group::segment_bytes(const GroupOptions& options) {
  return Layout(options.size, options.slot_bytes).size_bytes();
}

Group::Group(std::shared_ptr<SharedMemoryMapping> segment, const GroupOptions& options)
    : segment_(std::move(segment)),
      options_(options),
      layout_(options.size, options.slot_bytes),
      header_(*reinterpret_cast<Header*>(segment_->data())),
      peers_(blocks_of(*segment_, layout_, options.size), options.rank),
      barrier_(header_, peers_, options.spin) {}

Group::~Group() {
  if (!failed_) peers_.own().state.store(RankState::kLeft, std::memory_order_release);
  futex_wake_all(header_.epoch);
  for (int peer = 0; peer < size(); ++peer) {
    peers_.block(peer).doorbell.fetch_add(1, std::memory_order_release);
    futex_wake_all(peers_.block(peer).doorbell);
  }
}

void Group::meet(Timeout timeout) {
  wait("meeting", timeout);
  peers_.watch();
}

void Group::wait(const char* operation, Timeout timeout) {
  if (failed_) {
    throw PeerError({.what = concat(operation, " in a group that has failed before"),
                     .hint = "Make a new group.",
                     .rank = rank()});
  }
  try {
    barrier_.wait(operation, timeout);
  } catch (const PeerError&) {
    failed_ = true;
    peers_.own().state.store(RankState::kFailed, std::memory_order_release);
    futex_wake_all(header_.epoch);
    throw;
  }
}

void Group::enter(const Call& call, Timeout timeout) {
  RankBlock& own = peers_.own();
  own.calls[next_parity()] = call;
  own.operations.fetch_add(1, std::memory_order_relaxed);
  wait(name(call.operation), timeout);
  for (int peer = 0; peer < size(); ++peer) {
    if (!call.same_operation(peers_.block(peer).calls[parity()])) report_difference(parity());
  }
}

void Group::report_difference(uint32_t parity) const {
  std::vector<std::string> lines;
  for (int peer = 0; peer < size(); ++peer) {
    lines.push_back(concat("rank ", peer, ": ", describe(peers_.block(peer).calls[parity])));
  }
  throw Disagreement(
      {.what = concat("the ranks are about to run different collectives: ", join(lines, "; ")),
       .hint = "All ranks must call the same collectives in the same order, with equal shapes and dtypes.",
       .rank = rank()});
}

void Group::check_reduction(Element element, Reduction reduction) const {
  if (can_reduce(element, reduction)) return;
  throw ConfigError(
      {.what = concat("reducing ", shm::name(element), " by ", shm::name(reduction)),
       .expected = "a reduction of numbers; averages of floating types, bitwise ones of integers",
       .rank = rank()});
}

void Group::check_root(int root) const {
  if (root >= 0 && root < size()) return;
  throw ConfigError({.what = "root of a collective",
                     .expected = concat("a rank from 0 to ", size() - 1),
                     .got = std::to_string(root),
                     .rank = rank()});
}

// The heart of every operation but the large all-reduce: piece after piece goes through the slots, one
// barrier each.
template <class CopyIn, class CopyOut>
void Group::pump(const Call& call, size_t total, size_t chunk, const CopyIn& copy_in, const CopyOut& copy_out,
                 Timeout timeout) {
  copy_in(0, std::min(chunk, total), slot(next_parity(), rank()));
  enter(call, timeout);
  for (size_t at = 0; at < total; at += chunk) {
    const size_t next = at + chunk;
    copy_out(at, std::min(chunk, total - at), parity());
    if (next >= total) return;
    copy_in(next, std::min(chunk, total - next), slot(next_parity(), rank()));
    wait(name(call.operation), timeout);
  }
}

// A slot divided among all ranks, in whole elements and cache lines.
size_t Group::share_bytes(size_t element_size) const {
  const size_t line = std::max(kCacheLine, element_size);
  return layout_.slot_bytes() / static_cast<size_t>(size()) / line * line;
}

void Group::barrier(Timeout timeout) {
  enter(make_call(Operation::kBarrier, 0), timeout);
}

void Group::all_reduce(void* data, size_t count, Element element, Reduction reduction, Timeout timeout) {
  check_reduction(element, reduction);
  Call call = make_call(Operation::kAllReduce, count, element, reduction);
  const size_t bytes = count * element_bytes(element);
  if (bytes > std::min(kSmallBytes, layout_.slot_bytes())) {
    if (const auto arena = find_arena(data, bytes, &call.offset)) call.arena = arena->id();
    return reduce_in_slots(call, static_cast<std::byte*>(data), timeout);
  }
  pump(
      call, bytes, layout_.slot_bytes(),
      [&](size_t, size_t size, std::byte* slot) { copy_bytes(slot, data, size); },
      [&](size_t, size_t, uint32_t parity) {
        std::vector<const void*> inputs;
        for (int peer = 0; peer < size(); ++peer) inputs.push_back(slot(parity, peer));
        void* const outputs[] = {data};
        shm::reduce(element, reduction, inputs, outputs, count);
      },
      timeout);
}

bool Group::reduce_in_arena(const Call& call, Timeout timeout) {
  std::shared_ptr<Arena> arena;
  for (const auto& weak : arenas_) {
    const auto candidate = weak.lock();
    if (candidate && candidate->id() == call.arena) arena = candidate;
  }
  const uint32_t parity = this->parity();
  for (int peer = 0; peer < size(); ++peer) {
    if (call.arena == 0 || peers_.block(peer).calls[parity].arena != call.arena) return false;
  }
  const auto element = static_cast<Element>(call.element);
  const Part part(call.count, rank(), size());
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (int peer = 0; peer < size(); ++peer) {
    void* data =
        arena->region(peer) + peers_.block(peer).calls[parity].offset + part.begin * element_bytes(element);
    inputs.push_back(data);
    outputs.push_back(data);
  }
  shm::reduce(element, static_cast<Reduction>(call.reduction), inputs, outputs, part.end - part.begin);
  wait(name(call.operation), timeout);
  return true;
}

// Each rank reduces its part of a chunk and writes the result into everybody's slot, out of which each copies
// it. Others write a slot only between the barriers that made the chunk and the result visible, in the part
// that they alone read; the owner takes the result out before it fills the slot anew. The own part never goes
// through the slot.
void Group::reduce_in_slots(const Call& call, std::byte* data, Timeout timeout) {
  const auto element = static_cast<Element>(call.element);
  const size_t width = element_bytes(element);
  const size_t chunk = layout_.slot_bytes() / width;
  const auto copy_around_own = [&](size_t at, size_t count, std::byte* slot, bool in) {
    const Part part(count, rank(), size());
    for (const auto& [begin, end] : {std::pair(size_t{0}, part.begin), std::pair(part.end, count)}) {
      std::byte* inside = slot + begin * width;
      std::byte* outside = data + (at + begin) * width;
      copy_bytes(in ? inside : outside, in ? outside : inside, (end - begin) * width);
    }
  };
  if (call.arena != 0) {
    // The others may not be in the arena, which shows only after the barrier: then the chunk follows.
    enter(call, timeout);
    if (reduce_in_arena(call, timeout)) return;
    copy_around_own(0, std::min<size_t>(chunk, call.count), slot(next_parity(), rank()), true);
    wait(name(call.operation), timeout);
  } else {
    copy_around_own(0, std::min<size_t>(chunk, call.count), slot(next_parity(), rank()), true);
    enter(call, timeout);
    const uint32_t first = parity();
    bool others_waited = false;
    for (int peer = 0; peer < size(); ++peer) {
      others_waited = others_waited || peers_.block(peer).calls[first].arena != 0;
    }
    if (others_waited) {
      copy_around_own(0, std::min<size_t>(chunk, call.count), slot(next_parity(), rank()), true);
      wait(name(call.operation), timeout);
    }
  }
  std::vector<const void*> inputs(static_cast<size_t>(size()));
  std::vector<void*> outputs(static_cast<size_t>(size()));
  for (size_t at = 0; at < call.count; at += chunk) {
    const size_t count = std::min<size_t>(chunk, call.count - at);
    const uint32_t now = parity();
    const Part part(count, rank(), size());
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* start = peer == rank() ? data + at * width : slot(now, peer);
      outputs[static_cast<size_t>(peer)] = start + part.begin * width;
      inputs[static_cast<size_t>(peer)] = start + part.begin * width;
    }
    shm::reduce(element, static_cast<Reduction>(call.reduction), inputs, outputs, part.end - part.begin);
    const size_t next = at + count;
    if (next < call.count) {
      copy_around_own(next, std::min<size_t>(chunk, call.count - next), slot(next_parity(), rank()), true);
    }
    wait(name(call.operation), timeout);
    copy_around_own(at, count, slot(now, rank()), false);
  }
}

void Group::reduce(void* data, size_t count, Element element, Reduction reduction, int root,
                   Timeout timeout) {
  check_reduction(element, reduction);
  check_root(root);
  const size_t width = element_bytes(element);
  pump(
      make_call(Operation::kReduce, count, element, reduction, root), count * width, layout_.slot_bytes(),
      [&](size_t at, size_t size, std::byte* slot) {
        if (rank() != root) copy_bytes(slot, advance(data, at), size);
      },
      [&](size_t at, size_t bytes, uint32_t parity) {
        if (rank() != root) return;
        void* const outputs[] = {advance(data, at)};
        std::vector<const void*> inputs;
        for (int peer = 0; peer < size(); ++peer) {
          inputs.push_back(peer == root ? outputs[0] : slot(parity, peer));
        }
        shm::reduce(element, reduction, inputs, outputs, bytes / width);
      },
      timeout);
}

void Group::reduce_scatter(void* output, std::span<const void* const> inputs, size_t count, Element element,
                           Reduction reduction, Timeout timeout) {
  check_reduction(element, reduction);
  const size_t width = element_bytes(element);
  const size_t share = share_bytes(width);
  pump(
      make_call(Operation::kReduceScatter, count, element, reduction), count * width, share,
      [&](size_t at, size_t size, std::byte* slot) {
        for (size_t peer = 0; peer < inputs.size(); ++peer) {
          if (peer != static_cast<size_t>(rank())) {
            copy_bytes(slot + peer * share, advance(inputs[peer], at), size);
          }
        }
      },
      [&](size_t at, size_t bytes, uint32_t parity) {
        const auto own = static_cast<size_t>(rank());
        void* const outputs[] = {advance(output, at)};
        std::vector<const void*> parts;
        for (int peer = 0; peer < size(); ++peer) {
          parts.push_back(peer == rank() ? advance(inputs[own], at) : slot(parity, peer) + own * share);
        }
        shm::reduce(element, reduction, parts, outputs, bytes / width);
      },
      timeout);
}

void Group::broadcast(void* data, size_t bytes, int root, Timeout timeout) {
  check_root(root);
  pump(
      make_call(Operation::kBroadcast, bytes, Element::kByte, Reduction::kNone, root), bytes,
      layout_.slot_bytes(),
      [&](size_t at, size_t size, std::byte* slot) {
        if (rank() == root) copy_bytes(slot, advance(data, at), size);
      },
      [&](size_t at, size_t size, uint32_t parity) {
        if (rank() != root) copy_bytes(advance(data, at), slot(parity, root), size);
      },
      timeout);
}

void Group::all_gather(const void* input, std::span<void* const> outputs, size_t bytes, Timeout timeout) {
  pump(
      make_call(Operation::kAllGather, bytes), bytes, layout_.slot_bytes(),
      [&](size_t at, size_t size, std::byte* slot) { copy_bytes(slot, advance(input, at), size); },
      [&](size_t at, size_t size, uint32_t parity) {
        for (int peer = 0; peer < this->size(); ++peer) {
          const void* from = peer == rank() ? advance(input, at) : slot(parity, peer);
          copy_bytes(advance(outputs[static_cast<size_t>(peer)], at), from, size);
        }
      },
      timeout);
}

void Group::gather(const void* input, std::span<void* const> outputs, size_t bytes, int root,
                   Timeout timeout) {
  check_root(root);
  pump(
      make_call(Operation::kGather, bytes, Element::kByte, Reduction::kNone, root), bytes,
      layout_.slot_bytes(),
      [&](size_t at, size_t size, std::byte* slot) {
        if (rank() != root) copy_bytes(slot, advance(input, at), size);
      },
      [&](size_t at, size_t size, uint32_t parity) {
        for (int peer = 0; rank() == root && peer < this->size(); ++peer) {
          const void* from = peer == root ? advance(input, at) : slot(parity, peer);
          copy_bytes(advance(outputs[static_cast<size_t>(peer)], at), from, size);
        }
      },
      timeout);
}

void Group::scatter(void* output, std::span<const void* const> inputs, size_t bytes, int root,
                    Timeout timeout) {
  check_root(root);
  const size_t share = share_bytes(1);
  pump(
      make_call(Operation::kScatter, bytes, Element::kByte, Reduction::kNone, root), bytes, share,
      [&](size_t at, size_t size, std::byte* slot) {
        for (size_t peer = 0; rank() == root && peer < inputs.size(); ++peer) {
          copy_bytes(slot + peer * share, advance(inputs[peer], at), size);
        }
      },
      [&](size_t at, size_t size, uint32_t parity) {
        copy_bytes(advance(output, at), slot(parity, root) + static_cast<size_t>(rank()) * share, size);
      },
      timeout);
}

void Group::all_to_all(std::span<const void* const> inputs, std::span<const uint64_t> input_bytes,
                       std::span<void* const> outputs, std::span<const uint64_t> output_bytes,
                       Timeout timeout) {
  // First who sends how much to whom: sizes then rows of receipts, so that every rank sees the same mistakes.
  const auto ranks = static_cast<size_t>(size());
  std::vector<uint64_t> mine(input_bytes.begin(), input_bytes.end());
  mine.insert(mine.end(), output_bytes.begin(), output_bytes.end());
  std::vector<uint64_t> table(2 * ranks * ranks);
  std::vector<void*> rows;
  for (size_t peer = 0; peer < ranks; ++peer) rows.push_back(table.data() + 2 * ranks * peer);
  all_gather(mine.data(), rows, 2 * ranks * sizeof(uint64_t), timeout);
  uint64_t largest = 0;
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      const uint64_t sent = table[2 * ranks * from + to];
      const uint64_t expected = table[2 * ranks * to + ranks + from];
      largest = std::max(largest, sent);
      if (sent == expected) continue;
      throw Error({.what = concat("all_to_all from rank ", from, " to rank ", to),
                   .expected = concat(expected, " bytes as the receiver says"),
                   .got = concat(sent, " bytes"),
                   .rank = rank()});
    }
  }
  const size_t share = share_bytes(1);
  const auto piece = [&](uint64_t bytes, size_t at) {
    return bytes > at ? std::min<size_t>(share, bytes - at) : 0;
  };
  pump(
      make_call(Operation::kAllToAll, largest), largest, share,
      [&](size_t at, size_t, std::byte* slot) {
        for (size_t peer = 0; peer < ranks; ++peer) {
          if (const size_t size = piece(input_bytes[peer], at)) {
            copy_bytes(slot + peer * share, advance(inputs[peer], at), size);
          }
        }
      },
      [&](size_t at, size_t, uint32_t parity) {
        for (size_t peer = 0; peer < ranks; ++peer) {
          if (const size_t size = piece(output_bytes[peer], at)) {
            copy_bytes(advance(outputs[peer], at),
                       slot(parity, static_cast<int>(peer)) + static_cast<size_t>(rank()) * share, size);
          }
        }
      },
      timeout);
}

std::shared_ptr<Arena> Group::find_arena(const void* data, size_t bytes, uint64_t* offset) {
  std::shared_ptr<Arena> found;
  std::erase_if(arenas_, [&](const std::weak_ptr<Arena>& weak) {
    const auto arena = weak.lock();
    if (arena && !found && arena->contains(data, bytes, offset)) found = arena;
    return !arena;
  });
  return found;
}

std::shared_ptr<Arena> Group::make_arena(size_t region_bytes, std::string* problem, Timeout timeout) {
  int64_t wanted = static_cast<int64_t>(Layout::round_up(region_bytes, kPage));
  all_reduce(&wanted, 1, Element::kInt64, Reduction::kMax, timeout);
  const auto region = static_cast<size_t>(wanted);
  const size_t total = region * static_cast<size_t>(size());
  if (region == 0) return nullptr;

  struct Message {
    char found = 0;
    char text[1023] = {};
  } message;
  std::unique_ptr<SharedMemorySegment> segment;
  SharedMemoryMapping mapping;
  const auto tell = [&](bool found, const std::string& text) {
    message.found = found ? 1 : 0;
    text.copy(message.text, sizeof(message.text) - 1);
  };
  if (rank() == 0) {
    try {
      segment = std::make_unique<SharedMemorySegment>(options_.job_id, total);
      mapping = segment->map_writable();
      tell(true, segment->publish());
    } catch (const DataError& error) {
      tell(false, error.what());
    }
  }
  broadcast(&message, sizeof(message), 0, timeout);
  int32_t attached = message.found;
  *problem = message.found ? "" : message.text;
  if (rank() != 0 && message.found) {
    try {
      mapping = attach_shared_memory_writable(message.text, total);
    } catch (const DataError& error) {
      attached = 0;
      *problem = error.what();
    }
  }
  all_reduce(&attached, 1, Element::kInt32, Reduction::kMin, timeout);
  if (attached == 0) return nullptr;
  return adopt_arena(std::make_shared<SharedMemoryMapping>(std::move(mapping)), region);
}

std::shared_ptr<Arena> Group::adopt_arena(std::shared_ptr<SharedMemoryMapping> mapping, size_t region_bytes) {
  auto arena = std::make_shared<Arena>(std::move(mapping), ++arenas_made_, rank(), region_bytes);
  arenas_.push_back(arena);
  return arena;
}

}  // namespace accelerate::shm
