#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/core/log.h"

namespace accelerate {

/// Tells, once on every rank, that a loss is not finite. Each loss is looked at on the CPU; on other devices,
/// where looking makes the host wait, every 64th.
class LossWatch {
 public:
  void look(const at::Tensor& loss, Logger& logger);

 private:
  int64_t losses_ = 0;
  bool told_ = false;
};

}  // namespace accelerate
