#include "accelerate/precision/loss_watch.h"

#include <cmath>

#include "accelerate/core/strings.h"

namespace accelerate {

void LossWatch::look(const at::Tensor& loss, Logger& logger) {
  constexpr int64_t kEvery = 64;
  ++losses_;
  if (told_ || loss.numel() != 1 || (!loss.is_cpu() && losses_ % kEvery != 0)) return;
  const double value = loss.detach().to(at::kDouble).item<double>();
  if (std::isfinite(value)) return;
  told_ = true;
  logger.warning(concat("the loss of rank ", logger.rank(), " is ", value, " in backward number ", losses_,
                        ": it is not finite, and training on it spoils the weights"),
                 LogRanks::kAll);
}

}  // namespace accelerate
