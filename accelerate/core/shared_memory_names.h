#pragma once

#include <string>
#include <string_view>

namespace accelerate {

/// Folder in which POSIX shared-memory objects appear as files.
inline constexpr const char* kSharedMemoryDirectory = "/dev/shm";

/// What the names of a job's shared-memory segments begin with: "accelerate-<uid>-<job_id>-". A random part
/// follows.
std::string shared_memory_prefix(std::string_view job_id);

/// Unlinks every segment in /dev/shm whose name begins with `prefix` and returns how many there were.
/// Async-signal-safe: it also runs in a process that was forked from a program with threads. Does nothing for
/// an empty prefix.
int remove_shared_memory(const char* prefix) noexcept;

}  // namespace accelerate
