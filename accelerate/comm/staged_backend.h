#pragma once

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace accelerate::detail {

/// Collectives for tensors of a device that has none of its own: they are copied to the CPU, run by `inner`,
/// and copied back. Complete when the call returns.
c10::intrusive_ptr<c10d::Backend> stage_through_cpu(c10::intrusive_ptr<c10d::Backend> inner);

}  // namespace accelerate::detail
