#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

namespace c10d {
class Work;
}

namespace accelerate::detail {

/// What a rank has done and is doing in one group. Every collective has a number, counted alike on all ranks;
/// messages between two ranks have none. Written by the thread that runs the operations, read by the
/// watchdog; thread-safe.
class OperationLog {
 public:
  using Clock = std::chrono::steady_clock;

  struct State {
    int64_t begun = 0;            ///< collectives so far, the current one included
    std::string current = {};     ///< the oldest operation that is not over: "all_reduce #3 of Float [4]"
    int64_t current_id = 0;       ///< tells operations of this rank apart; 0 for none
    std::string last = {};        ///< the last that is over, empty before the first
    Clock::duration since{};      ///< age of the current one, else time since the last ended
    int64_t backward_passes = 0;  ///< passes that reduced gradients
  };

  /// An operation of this thread, from the call to its return. Operations that it is made of are not counted
  /// by themselves.
  class [[nodiscard]] Scope {
   public:
    /// A collective. An undefined tensor has no shape.
    Scope(OperationLog& log, const char* name, const at::Tensor& tensor)
        : Scope(log, name, tensor, kCollective) {}
    /// A message from or to rank `peer`, or any where it is -1.
    Scope(OperationLog& log, const char* name, const at::Tensor& tensor, int peer);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// The operation goes on after the scope, until `work` is complete.
    void goes_on(const c10::intrusive_ptr<c10d::Work>& work);
    /// "all_reduce #3 of Float [4]"
    std::string text() const;

   private:
    static constexpr int kCollective = -2;

    OperationLog& log_;
    const OperationLog* outer_;  // in which this thread was
    int64_t id_ = 0;             // 0: part of another
  };

  void count_backward_pass();
  State state();

 private:
  struct Entry {
    int64_t id = 0;
    int64_t number = 0;  // 0: no collective
    int peer = -1;
    std::string name;
    at::ScalarType dtype = at::ScalarType::Undefined;  // undefined: no tensor
    c10::SmallVector<int64_t, 5> sizes;
    Clock::time_point begun;
    c10::intrusive_ptr<c10d::Work> work;  // null while the call has not returned
  };
  static std::string describe(const Entry& entry);
  Entry* find(int64_t id);
  void finish(std::deque<Entry>::iterator entry);
  void drop_complete();

  std::mutex mutex_;
  std::deque<Entry> running_;
  std::optional<Entry> last_;
  Clock::time_point last_ended_ = Clock::now();
  int64_t next_id_ = 1;
  int64_t begun_ = 0;
  int64_t backward_passes_ = 0;
};

}  // namespace accelerate::detail
