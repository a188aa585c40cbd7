#pragma once

#include <string>

namespace accelerate {

/// CPUs that this process may run on (its affinity mask), at least 1.
int logical_cpus();

/// Cores behind those CPUs, hyper-threads counted once and a container's CPU quota respected; at least 1.
int physical_cores();

/// This machine's name, or "localhost" when it has none.
std::string host_name();

}  // namespace accelerate
