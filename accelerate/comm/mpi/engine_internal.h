#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/comm/mpi/handles_internal.h"
#include "accelerate/core/deadline.h"

namespace accelerate::mpi {

/// One operation of a group, from its request to MPI's last answer.
struct Operation {
  std::string name;
  Deadline deadline;
  std::shared_ptr<Comm> comm;
  std::function<void(Calls&)> calls;
  Group::Done done;
  bool is_message = false;
  Posted posted = {};
};

/// The progress thread; see Note [The progress thread of MPI]. Methods without another remark are for other
/// threads. The one object is never destroyed: the thread may still be inside MPI when the process ends.
class Engine {
 public:
  static Engine& get();

  Place start(const Deadline& deadline);
  /// Runs `task` on the progress thread.
  void post(std::function<void()> task);
  /// Begins an operation there.
  void request(Operation operation);
  /// As post(), and waits for the task. `what` is for the error.
  void call(const std::function<void()>& task, const Deadline& deadline, const std::string& what);

  // On the progress thread.
  void open(Comm& comm, const std::vector<int>& world_ranks);
  void close(std::shared_ptr<Comm> comm);
  void begin(std::shared_ptr<Operation> operation);

 private:
  using Clock = std::chrono::steady_clock;

  Engine() = default;
  void ensure_thread();
  bool on_thread() const { return std::this_thread::get_id() == thread_id_.load(); }

  // On the progress thread.
  void loop();
  void initialize();
  bool poll();
  void finish(Operation& operation, const std::exception_ptr& error);
  void fail(const std::shared_ptr<Operation>& operation, const std::exception_ptr& error);
  void give_up(const std::shared_ptr<Operation>& operation);
  bool is_used(const Comm& comm) const;
  void release(Comm& comm);
  void leave(int exit_status);
  std::chrono::milliseconds leave_limit() const;
  void finalize_if_left();
  std::deque<std::function<void()>> take_tasks(bool moved);
  std::chrono::microseconds pause() const;
  static void at_exit(int exit_status, void*);

  std::mutex mutex_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> tasks_;
  bool has_thread_ = false;
  std::atomic<std::thread::id> thread_id_;
  std::promise<void> ended_;
  std::atomic<bool> gone_ = false;       ///< the thread has ended, since the process does
  std::atomic<int64_t> longest_ms_ = 0;  ///< the longest deadline that a group was made with
  std::atomic<bool> clean_ = true;       ///< no collective has failed

  std::atomic<bool> owns_ = false;        ///< MPI_Init was ours, so MPI_Finalize is
  std::atomic<bool> left_alone_ = false;  ///< the others did not come to the end in time

  // Of the progress thread.
  bool initialized_ = false;
  bool stop_ = false;
  bool said_goodbye_ = false;
  int groups_ = 0;
  std::vector<std::shared_ptr<Operation>> active_;
  std::vector<std::shared_ptr<Operation>> abandoned_;  ///< MPI may still write to their memory
  std::vector<std::shared_ptr<Comm>> closing_;
  Clock::time_point last_event_ = Clock::now();
};

}  // namespace accelerate::mpi
