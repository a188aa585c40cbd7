#pragma once

#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/comm/communicator.h"

namespace accelerate::test {

/// Environment variables for one Accelerator.
inline EnvVars variables(std::map<std::string, std::string, std::less<>> values) {
  return EnvVars(std::move(values));
}

/// The back end of ranks that are threads: gloo, or what ACCELERATE_TEST_BACKEND says.
inline std::string thread_backend() {
  const char* name = std::getenv("ACCELERATE_TEST_BACKEND");
  return name == nullptr ? "gloo" : name;
}

/// Options for an Accelerator that is rank `rank` of `size` threads, which share `store`. Independent of the
/// machine's environment and configuration files.
inline AcceleratorOptions thread_rank_options(const Store& store, int rank, int size,
                                              const std::string& job_id, AcceleratorOptions options = {}) {
  options.environment = EnvVars();
  options.topology = Topology{.launcher = "threads",
                              .rank = rank,
                              .world_size = size,
                              .local_rank = rank,
                              .local_world_size = size,
                              .job_id = job_id};
  if (options.timeout == AcceleratorOptions().timeout) options.timeout = std::chrono::seconds(60);
  options.logger = std::make_shared<Logger>(rank, LogLevel::kError);
  options.communicator =
      make_communicator(store.share(), rank, size, /*loopback=*/true,
                        {.backend = thread_backend(), .timeout = options.timeout}, *options.logger);
  return options;
}

/// Runs `body(rank, store, job_id)` on `size` threads and waits for all. Throws the first error that is no
/// CommError, since a rank that fails makes the others lose it; throws too if not every rank ran to its end.
inline void run_threads(int size, const std::function<void(int, const Store&, const std::string&)>& body) {
  // torch keeps one record of recent collectives for the whole process and writes to it without a lock that
  // covers several groups; threads as ranks crash in it. Size 0 switches it off.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  static std::atomic<int> jobs = 0;
  const std::string job_id = "test-" + std::to_string(::getpid()) + "-" + std::to_string(jobs++);
  const Store store = make_in_memory_store();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank, store, job_id);
        ++finished;
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr secondary;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      if (!secondary) secondary = error;
    }
  }
  if (secondary) std::rethrow_exception(secondary);
  if (finished != size) throw std::runtime_error("only " + std::to_string(finished) + " ranks ran");
}

/// Runs `body(accelerator)` with one Accelerator a thread.
inline void run_ranks(int size, const std::function<void(Accelerator&)>& body,
                      const AcceleratorOptions& options = {}) {
  run_threads(size, [&](int rank, const Store& store, const std::string& job_id) {
    Accelerator accelerator(thread_rank_options(store, rank, size, job_id, options));
    body(accelerator);
  });
}

}  // namespace accelerate::test
