#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// Fetches batches first..last-1 on threads, at most `ahead` of the one that is used, and hands them out in
/// order. An error of a fetch is thrown by next() when that batch's turn comes. The destructor ends the
/// threads: each finishes the fetch that it is in.
template <class Batch>
class Prefetcher {
 public:
  Prefetcher(int64_t first, int64_t last, int64_t num_threads, int64_t ahead,
             std::function<Batch(int64_t)> fetch)
      : fetch_(std::move(fetch)), next_to_fetch_(first), next_to_use_(first), last_(last), ahead_(ahead) {
    for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next batch; there must be one left.
  Batch next() {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return done_.contains(next_to_use_); });
    auto node = done_.extract(next_to_use_++);
    lock.unlock();
    room_.notify_one();
    if (node.mapped().second) std::rethrow_exception(node.mapped().second);
    return std::move(*node.mapped().first);
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [&] {
        return stopping_ || next_to_fetch_ >= last_ || next_to_fetch_ < next_to_use_ + ahead_;
      });
      if (stopping_ || next_to_fetch_ >= last_) return;
      const int64_t number = next_to_fetch_++;
      lock.unlock();
      std::pair<std::optional<Batch>, std::exception_ptr> result;
      try {
        result.first.emplace(fetch_(number));
      } catch (...) {
        result.second = std::current_exception();
      }
      lock.lock();
      done_.emplace(number, std::move(result));
      if (number == next_to_use_) ready_.notify_one();
    }
  }

  std::function<Batch(int64_t)> fetch_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable room_;
  std::map<int64_t, std::pair<std::optional<Batch>, std::exception_ptr>> done_;
  int64_t next_to_fetch_;
  int64_t next_to_use_;
  int64_t last_;
  int64_t ahead_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace accelerate::detail
