#pragma once

#include <future>
#include <memory>
#include <type_traits>
#include <utility>

#include "accelerate/environment/env_vars.h"
#include "accelerate/environment/registry.h"

namespace accelerate {

/// A loader for SharedMemoryDataset::create() that is running already, see load_ahead().
template <class Load>
class LoadAhead {
 public:
  using Result = std::invoke_result_t<Load&>;

  LoadAhead(Load load, bool start) : load_(std::make_shared<Load>(std::move(load))) {
    if (start) result_ = std::async(std::launch::async, [held = load_] { return (*held)(); }).share();
  }

  /// What the loader returned; waits for it.
  /// @throws what the loader threw.
  Result operator()() const { return result_.valid() ? result_.get() : (*load_)(); }

 private:
  std::shared_ptr<Load> load_;
  std::shared_future<Result> result_;
};

/// Starts `load` at once on a thread, on the process that will build its machine's shared copy and nowhere
/// else: the data is read while the ranks still start and meet. Call it before the Accelerator is made:
///
///     auto loading = accelerate::load_ahead([] { return accelerate::load_npy("x.npy"); });
///     accelerate::Accelerator accelerator;
///     auto data = accelerate::SharedMemoryDataset::create(accelerator, loading);
///
/// `load` may use no Accelerator and must allow to run beside the main thread. Its result must be copyable;
/// tensors are shared, not copied. Which process builds is read from `environment`.
template <class Load>
auto load_ahead(Load load, const EnvVars& environment = EnvVars::from_process()) {
  return LoadAhead<Load>(std::move(load), detect_topology(environment).local_rank == 0);
}

}  // namespace accelerate
