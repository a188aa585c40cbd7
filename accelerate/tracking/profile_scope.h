#pragma once

#include <ATen/record_function.h>

#include <string_view>

namespace accelerate {

/// Local. A range of your own in a profile, from the constructor to the end of the scope: "forward",
/// "augment". Without a profiler it costs a look at a thread-local list. What Python's
/// torch.profiler.record_function does; LibTorch's macro RECORD_USER_SCOPE("name") is as good, but for one
/// range a scope and names that are literals. Ranges nest, and must end on the thread that began them.
class ProfileScope {
 public:
  explicit ProfileScope(std::string_view name) : range_(at::RecordScope::USER_SCOPE) {
    if (range_.isActive()) range_.before(name);
  }
  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  at::RecordFunction range_;
};

}  // namespace accelerate
