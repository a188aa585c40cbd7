#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {

/// Makes batches out of jobs: `draw` gives the next job, one call at a time and in order, and nullopt at the
/// end; `make` turns jobs into batches, on several threads at once. next() hands the batches out in the order
/// of the jobs. With `num_threads` 0 all happens in next(); otherwise threads work at most `ahead` batches in
/// front of the one that is used. An error of draw or make is thrown by next() when that batch's turn comes.
/// The destructor ends the threads: each finishes what it is in.
template <class Job, class Batch>
class Prefetcher {
 public:
  using Draw = std::function<std::optional<Job>()>;
  using Make = std::function<Batch(Job)>;

  Prefetcher(Draw draw, Make make, int64_t num_threads, int64_t ahead)
      : draw_(std::move(draw)), make_(std::move(make)), ahead_(ahead) {
    try {
      for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      const size_t started = threads_.size();
      stop();
      throw DataError({.what = concat("threads of a data loader: ", error.what()),
                       .expected = concat(num_threads, " workers"),
                       .got = concat(started, " that could be started"),
                       .hint = "Lower num_workers, or raise the limit on processes (ulimit -u)."});
    }
  }

  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next batch, or nullopt at the end.
  std::optional<Batch> next() {
    if (threads_.empty()) {
      std::optional<Job> job = draw_();
      if (!job) return std::nullopt;
      return make_(std::move(*job));
    }
    std::unique_lock lock(mutex_);
    ready_.wait(lock,
                [&] { return done_.contains(next_to_use_) || (ended_ && next_to_use_ >= next_to_draw_); });
    if (!done_.contains(next_to_use_)) return std::nullopt;
    auto node = done_.extract(next_to_use_++);
    lock.unlock();
    room_.notify_all();
    if (node.mapped().second) std::rethrow_exception(node.mapped().second);
    return std::move(node.mapped().first);
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  using Result = std::pair<std::optional<Batch>, std::exception_ptr>;

  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      room_.wait(lock,
                 [&] { return stopping_ || ended_ || (!drawing_ && next_to_draw_ < next_to_use_ + ahead_); });
      if (stopping_ || ended_) return;
      drawing_ = true;
      lock.unlock();
      std::optional<Job> job;
      Result result;
      try {
        job = draw_();
      } catch (...) {
        result.second = std::current_exception();
      }
      lock.lock();
      drawing_ = false;
      ended_ = !job;
      const int64_t number = job || result.second ? next_to_draw_++ : next_to_draw_;
      lock.unlock();
      room_.notify_all();
      if (job) {
        try {
          result.first.emplace(make_(std::move(*job)));
        } catch (...) {
          result.second = std::current_exception();
        }
      }
      lock.lock();
      if (job || result.second) done_.emplace(number, std::move(result));
      lock.unlock();
      ready_.notify_one();
    }
  }

  Draw draw_;
  Make make_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable room_;
  std::map<int64_t, Result> done_;
  int64_t next_to_draw_ = 0;
  int64_t next_to_use_ = 0;
  int64_t ahead_;
  bool drawing_ = false;  // a thread is in draw_
  bool ended_ = false;    // draw_ has given its last job, or thrown
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace accelerate::detail
