#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/comm/shm/group.h"

namespace accelerate::shm {

// Note [Messages]
// Each ordered pair of ranks has a ring in the segment through which a stream of messages flows: a header
// with tag and size, then the bytes. Any rank may send while others run collectives. A thread of each rank,
// started at its first message, moves what it can between rings and memory: so two ranks may both send before
// they receive, and a message larger than the ring flows while the receiver takes it. It sleeps on its
// doorbell, which peers ring after they wrote to or took from one of its rings. Messages of one pair and tag
// arrive in the order in which they were sent; one that nobody waits for yet is kept in memory.

/// One rank's side of all its channels. Thread-safe.
class Mailbox {
 public:
  /// Called once, on the mailbox's thread, with nothing or with the error; `source` is who sent it.
  using Done = std::function<void(std::exception_ptr error, int source)>;
  static constexpr int kAnySource = -1;

  explicit Mailbox(Group& group);
  /// What has not come through is given up with an error.
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// `data` stays as it is until `done` was called, which is when it lies in the ring.
  void send(const void* data, size_t bytes, int destination, int tag, Group::Timeout timeout, Done done);
  /// Fills `data` with the next message of `tag` from `source` (or kAnySource), which must be of this size.
  void receive(void* data, size_t bytes, int source, int tag, Group::Timeout timeout, Done done);

 private:
  using Clock = std::chrono::steady_clock;
  struct Channel;  // in the segment

  struct Head {
    uint64_t bytes = 0;
    int64_t tag = 0;
  };
  struct Sending {
    Head head;
    const std::byte* data;
    size_t moved = 0;  // of head and data together
    Clock::time_point deadline;
    Done done;
  };
  struct Receiving {
    std::byte* data;
    size_t bytes;
    int source;
    int tag;
    Clock::time_point deadline;
    Done done;
    bool started = false;  // a message flows into it
  };
  struct Kept {
    Head head;
    int source;
    std::vector<std::byte> bytes;
  };
  struct Incoming {  // the message that flows out of one channel
    Head head;
    size_t moved = 0;
    Receiving* into = nullptr;    // where it goes; else to
    std::vector<std::byte> kept;  // where it waits
    bool dropped = false;         // nobody may have it: its receiver gave up or wants another size
  };
  struct Finished {
    Done done;
    std::exception_ptr error;
    int source;
  };

  void post();
  void serve();
  bool move_all();
  bool push(int destination);
  bool pull(int source);
  void begin_message(int source);
  void end_message(int source);
  Receiving* find_receiver(int source, int64_t tag);
  void finish(Receiving* receiving, const std::exception_ptr& error, int source);
  std::exception_ptr wrong_size(const Receiving& receiving, int source, uint64_t bytes) const;
  std::exception_ptr lost(const std::string& what, int peer, const std::string& reason) const;
  std::string why_silent(int source, bool look_closely) const;
  void give_up(Clock::time_point now, bool look_closely);
  void deliver(std::unique_lock<std::mutex>& lock);
  void ring(int peer);
  Channel& channel(int source, int destination) const;

  Group& group_;
  size_t capacity_;
  std::mutex mutex_;
  std::vector<std::deque<Sending>> sending_;  // by destination
  std::vector<bool> broken_;                  // by destination: half a message lies in the ring for good
  std::vector<Incoming> incoming_;            // by source
  std::list<Receiving> receiving_;
  std::list<Kept> kept_;
  std::vector<Finished> finished_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace accelerate::shm
