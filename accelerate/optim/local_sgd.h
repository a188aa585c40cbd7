#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/comm/communicator.h"
#include "accelerate/optim/accumulation.h"
#include "accelerate/strategy/prepared_model.h"

namespace accelerate {

class Accelerator;

/// Trains each rank on its own and averages the weights from time to time, which needs fewer exchanges than
/// averaging the gradients of every step (Stich 2018, "Local SGD converges fast and communicates little").
/// HF's LocalSGD. Gradients stay on their rank from the constructor to finish().
///
///     LocalSgd local(accelerator, model, 8);
///     for (auto& batch : loader) { ...; optimizer.step(); local.step(); }
///     local.finish();
class LocalSgd {
 public:
  /// `interval`: optimizer steps between two averages, 1 or more.
  /// @throws ConfigError for another interval.
  template <class M>
  LocalSgd(Accelerator& accelerator, const PreparedModel<M>& model, int64_t interval)
      : LocalSgd(accelerator, model.core(), interval) {}
  /// Lets gradients be reduced again, without averaging: a loop that was left by an exception can't meet the
  /// others.
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// Collective in every `interval`th call: the weights become their mean over all ranks. Call after each
  /// optimizer step; micro-batches within an accumulation window do not count.
  void step();
  /// Collective. Averages a last time and lets gradients be reduced again.
  void finish();

 private:
  LocalSgd(Accelerator& accelerator, std::shared_ptr<detail::ModelCore> model, int64_t interval);
  void average();

  Accelerator& accelerator_;
  std::shared_ptr<detail::ModelCore> model_;
  int64_t interval_;
  int64_t steps_ = 0;
};

}  // namespace accelerate
