#pragma once

#include <torch/optim/optimizer.h>

namespace accelerate::detail {

// Note [Fused steps]
// LibTorch's optimizers walk over the parameters and run some ten small operations on each, every one of them
// a pass over memory (on a GPU: a kernel launch). ATen has kernels that do a whole step in one pass over a
// list of parameters, which Python reaches by torch.optim.AdamW(..., fused=True). fused_step() calls them
// with the optimizer's own state objects (AdamWParamState and so on: moments, int64 step counts), so that
// saving, loading, looking at state() and going on with the optimizer's own step() work at any time. What the
// kernels can't do is left to the optimizer's own step(), parameter by parameter: it passes over parameters
// without a gradient, so the gradients of those that are done are taken away while it runs.

/// optimizer.step() by ATen's fused kernels where they apply: SGD, Adam, AdamW and Adagrad (exactly these
/// types, not a class derived from them), and of their parameters those that are dense and real (float32,
/// float64, float16 or bfloat16), whose gradient and state have the parameter's dtype, device and layout, on
/// a device that has the kernel. All others take the optimizer's own step. In float32 and float64 the results
/// equal the own step's up to rounding; in the 16-bit types they are nearer to the true value, since sums are
/// not rounded in between. Local; never waits for a device.
/// @throws what the optimizer's own step() throws.
void fused_step(torch::optim::Optimizer& optimizer);

}  // namespace accelerate::detail
