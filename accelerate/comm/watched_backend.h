#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "accelerate/comm/operation_log.h"

namespace c10d {
class Backend;
}

namespace accelerate::detail {

/// `backend`, every operation of which is noted in `log`: also those that a foreign engine (c10d's Reducer)
/// runs.
c10::intrusive_ptr<c10d::Backend> watch_operations(c10::intrusive_ptr<c10d::Backend> backend,
                                                   std::shared_ptr<OperationLog> log);

}  // namespace accelerate::detail
