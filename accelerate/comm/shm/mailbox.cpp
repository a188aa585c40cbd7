#include "accelerate/comm/shm/mailbox.h"

#include <algorithm>
#include <cstring>

#include "accelerate/comm/shm/futex.h"
#include "accelerate/core/strings.h"

namespace accelerate::shm {

struct Mailbox::Channel {
  alignas(kCacheLine) std::atomic<uint64_t> written;  ///< bytes, ever
  alignas(kCacheLine) std::atomic<uint64_t> taken;
  alignas(kCacheLine) std::byte data[];
};

namespace {

// Copies between linear memory and a ring that wraps.
void into_ring(std::byte* ring, size_t capacity, uint64_t at, const std::byte* from, size_t bytes) {
  const size_t start = at % capacity;
  const size_t first = std::min(bytes, capacity - start);
  std::memcpy(ring + start, from, first);
  if (first < bytes) std::memcpy(ring, from + first, bytes - first);
}

void out_of_ring(const std::byte* ring, size_t capacity, uint64_t at, std::byte* to, size_t bytes) {
  const size_t start = at % capacity;
  const size_t first = std::min(bytes, capacity - start);
  std::memcpy(to, ring + start, first);
  if (first < bytes) std::memcpy(to + first, ring, bytes - first);
}

}  // namespace

Mailbox::Mailbox(Group& group)
    : group_(group),
      capacity_(group.channel_bytes() - sizeof(Channel)),
      sending_(static_cast<size_t>(group.size())),
      broken_(static_cast<size_t>(group.size())),
      incoming_(static_cast<size_t>(group.size())) {}

Mailbox::~Mailbox() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ring(group_.rank());
  if (thread_.joinable()) thread_.join();
  const auto error = std::make_exception_ptr(
      PeerError({.what = "a message was on its way when its group ended", .rank = group_.rank()}));
  for (auto& queue : sending_) {
    for (Sending& sending : queue) sending.done(error, group_.rank());
  }
  for (Receiving& receiving : receiving_) receiving.done(error, receiving.source);
  for (Finished& finished : finished_) finished.done(finished.error, finished.source);
}

void Mailbox::send(const void* data, size_t bytes, int destination, int tag, Group::Timeout timeout,
                   Done done) {
  const std::lock_guard lock(mutex_);
  sending_[static_cast<size_t>(destination)].push_back({.head = {bytes, tag},
                                                        .data = static_cast<const std::byte*>(data),
                                                        .deadline = Clock::now() + timeout,
                                                        .done = std::move(done)});
  post();
}

void Mailbox::receive(void* data, size_t bytes, int source, int tag, Group::Timeout timeout, Done done) {
  const std::lock_guard lock(mutex_);
  receiving_.push_back({.data = static_cast<std::byte*>(data),
                        .bytes = bytes,
                        .source = source,
                        .tag = tag,
                        .deadline = Clock::now() + timeout,
                        .done = std::move(done)});
  // A message that came before is the first of its kind, and this is the first that waits for one.
  const auto match = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.head.tag == tag && (source == kAnySource || kept.source == source);
  });
  if (match != kept_.end()) {
    Receiving& receiving = receiving_.back();
    const bool fits = match->head.bytes == bytes;
    if (fits && bytes > 0) std::memcpy(data, match->bytes.data(), bytes);
    finish(&receiving, fits ? nullptr : wrong_size(receiving, match->source, match->head.bytes),
           match->source);
    kept_.erase(match);
  }
  post();
}

void Mailbox::post() {
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  ring(group_.rank());
}

void Mailbox::ring(int peer) {
  std::atomic<uint32_t>& doorbell = group_.peers().block(peer).doorbell;
  doorbell.fetch_add(1, std::memory_order_release);
  futex_wake_all(doorbell);
}

Mailbox::Channel& Mailbox::channel(int source, int destination) const {
  return *reinterpret_cast<Channel*>(group_.channel(source, destination));
}

void Mailbox::serve() {
  const std::atomic<uint32_t>& doorbell = group_.peers().own().doorbell;
  bool quiet = false;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const uint32_t seen = doorbell.load(std::memory_order_acquire);
    const bool moved = move_all();
    give_up(Clock::now(), quiet);
    deliver(lock);
    if (moved) continue;
    const bool idle = receiving_.empty() && std::all_of(sending_.begin(), sending_.end(),
                                                        [](const auto& queue) { return queue.empty(); });
    lock.unlock();
    quiet = !futex_wait(doorbell, seen, idle ? std::chrono::seconds(10) : kSlice);
    lock.lock();
  }
}

void Mailbox::deliver(std::unique_lock<std::mutex>& lock) {
  while (!finished_.empty()) {
    std::vector<Finished> batch = std::exchange(finished_, {});
    lock.unlock();
    for (Finished& finished : batch) finished.done(finished.error, finished.source);
    lock.lock();
  }
}

bool Mailbox::move_all() {
  bool moved = false;
  for (int peer = 0; peer < group_.size(); ++peer) {
    moved = push(peer) || moved;
    moved = pull(peer) || moved;
  }
  return moved;
}

bool Mailbox::push(int destination) {
  auto& queue = sending_[static_cast<size_t>(destination)];
  Channel& to = channel(group_.rank(), destination);
  bool moved = false;
  while (!queue.empty() && !broken_[static_cast<size_t>(destination)]) {
    Sending& sending = queue.front();
    const uint64_t written = to.written.load(std::memory_order_relaxed);
    const size_t room = capacity_ - static_cast<size_t>(written - to.taken.load(std::memory_order_acquire));
    const bool in_head = sending.moved < sizeof(Head);
    const size_t left =
        in_head ? sizeof(Head) - sending.moved : sizeof(Head) + sending.head.bytes - sending.moved;
    const size_t piece = std::min(room, left);
    if (piece == 0 && left > 0) break;
    const std::byte* from = in_head ? reinterpret_cast<const std::byte*>(&sending.head) + sending.moved
                                    : sending.data + (sending.moved - sizeof(Head));
    if (piece > 0) into_ring(to.data, capacity_, written, from, piece);
    sending.moved += piece;
    to.written.store(written + piece, std::memory_order_release);
    moved = true;
    if (sending.moved == sizeof(Head) + sending.head.bytes) {
      finished_.push_back({std::move(sending.done), nullptr, group_.rank()});
      queue.pop_front();
    }
  }
  if (moved) ring(destination);
  return moved;
}

bool Mailbox::pull(int source) {
  Channel& from = channel(source, group_.rank());
  Incoming& incoming = incoming_[static_cast<size_t>(source)];
  bool moved = false;
  for (;;) {
    const uint64_t taken = from.taken.load(std::memory_order_relaxed);
    const auto available = static_cast<size_t>(from.written.load(std::memory_order_acquire) - taken);
    if (available == 0) break;
    const bool in_head = incoming.moved < sizeof(Head);
    const size_t left =
        in_head ? sizeof(Head) - incoming.moved : sizeof(Head) + incoming.head.bytes - incoming.moved;
    const size_t piece = std::min(available, left);
    const size_t at = incoming.moved - (in_head ? 0 : sizeof(Head));
    std::byte* to = in_head                    ? reinterpret_cast<std::byte*>(&incoming.head)
                    : incoming.dropped         ? nullptr
                    : incoming.into != nullptr ? incoming.into->data
                                               : incoming.kept.data();
    if (to != nullptr) out_of_ring(from.data, capacity_, taken, to + at, piece);
    incoming.moved += piece;
    from.taken.store(taken + piece, std::memory_order_release);
    moved = true;
    if (in_head && incoming.moved == sizeof(Head)) begin_message(source);
    if (incoming.moved >= sizeof(Head) && incoming.moved == sizeof(Head) + incoming.head.bytes) {
      end_message(source);
    }
  }
  if (moved) ring(source);
  return moved;
}

Mailbox::Receiving* Mailbox::find_receiver(int source, int64_t tag) {
  const auto match = std::find_if(receiving_.begin(), receiving_.end(), [&](const Receiving& receiving) {
    return !receiving.started && receiving.tag == tag &&
           (receiving.source == kAnySource || receiving.source == source);
  });
  return match == receiving_.end() ? nullptr : &*match;
}

void Mailbox::begin_message(int source) {
  Incoming& incoming = incoming_[static_cast<size_t>(source)];
  Receiving* receiver = find_receiver(source, incoming.head.tag);
  if (receiver == nullptr) {
    incoming.kept.resize(incoming.head.bytes);
  } else if (receiver->bytes != incoming.head.bytes) {
    finish(receiver, wrong_size(*receiver, source, incoming.head.bytes), source);
    incoming.dropped = true;
  } else {
    receiver->started = true;
    incoming.into = receiver;
  }
}

void Mailbox::end_message(int source) {
  Incoming done = std::exchange(incoming_[static_cast<size_t>(source)], Incoming{});
  if (done.dropped) return;
  if (done.into != nullptr) return finish(done.into, nullptr, source);
  // A receiver may have come meanwhile.
  Receiving* receiver = find_receiver(source, done.head.tag);
  if (receiver == nullptr) {
    kept_.push_back({done.head, source, std::move(done.kept)});
    return;
  }
  const bool fits = receiver->bytes == done.head.bytes;
  if (fits && !done.kept.empty()) std::memcpy(receiver->data, done.kept.data(), done.kept.size());
  finish(receiver, fits ? nullptr : wrong_size(*receiver, source, done.head.bytes), source);
}

void Mailbox::finish(Receiving* receiving, const std::exception_ptr& error, int source) {
  finished_.push_back({std::move(receiving->done), error, source});
  receiving_.remove_if([&](const Receiving& other) { return &other == receiving; });
}

std::exception_ptr Mailbox::wrong_size(const Receiving& receiving, int source, uint64_t bytes) const {
  return std::make_exception_ptr(
      Error({.what = concat("a message with tag ", receiving.tag, " from rank ", source),
             .expected = concat(receiving.bytes, " bytes"),
             .got = concat(bytes, " bytes"),
             .rank = group_.rank()}));
}

std::exception_ptr Mailbox::lost(const std::string& what, int peer, const std::string& reason) const {
  const std::string who = peer == kAnySource ? "any rank" : concat("rank ", peer);
  return std::make_exception_ptr(
      PeerError({.what = concat(what, who, " over shared memory: ", reason), .rank = group_.rank()}));
}

// Empty while a message may still come.
std::string Mailbox::why_silent(int source, bool look_closely) const {
  if (source == group_.rank()) return {};
  std::string reason = group_.peers().why_gone(source, look_closely);
  // Read after the reason: what a rank sent before it left is still there.
  const Channel& from = channel(source, group_.rank());
  const bool empty =
      from.written.load(std::memory_order_acquire) == from.taken.load(std::memory_order_relaxed);
  return empty ? reason : std::string();
}

void Mailbox::give_up(Clock::time_point now, bool look_closely) {
  for (auto next = receiving_.begin(); next != receiving_.end();) {
    Receiving& receiving = *next++;
    std::string reason;
    if (receiving.source != kAnySource) {
      reason = why_silent(receiving.source, look_closely);
    } else if (!receiving.started) {
      std::vector<std::string> reasons;
      for (int peer = 0; peer < group_.size(); ++peer) {
        std::string silent = why_silent(peer, look_closely);
        if (!silent.empty()) reasons.push_back(std::move(silent));
      }
      if (static_cast<int>(reasons.size()) == group_.size() - 1) reason = join(reasons, "; ");
    }
    if (reason.empty() && now >= receiving.deadline) reason = "nothing came in time";
    if (reason.empty()) continue;
    for (Incoming& incoming : incoming_) {
      if (incoming.into != &receiving) continue;
      incoming.into = nullptr;
      incoming.dropped = true;
    }
    finish(&receiving, lost(concat("a message with tag ", receiving.tag, " from "), receiving.source, reason),
           receiving.source);
  }
  for (int peer = 0; peer < group_.size(); ++peer) {
    auto& queue = sending_[static_cast<size_t>(peer)];
    if (queue.empty()) continue;
    std::string reason = peer == group_.rank() ? "" : group_.peers().why_gone(peer, look_closely);
    if (reason.empty() && now >= queue.front().deadline) reason = "it did not take the message in time";
    if (reason.empty() && broken_[static_cast<size_t>(peer)])
      reason = "a message before was given up half way";
    if (reason.empty()) continue;
    broken_[static_cast<size_t>(peer)] = broken_[static_cast<size_t>(peer)] || queue.front().moved > 0;
    for (Sending& sending : queue) {
      finished_.push_back({std::move(sending.done),
                           lost(concat("a message with tag ", sending.head.tag, " to "), peer, reason),
                           group_.rank()});
    }
    queue.clear();
  }
}

}  // namespace accelerate::shm
