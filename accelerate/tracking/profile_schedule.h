#pragma once

#include <cstdint>

namespace accelerate {

/// Which steps a Profiler records; the numbers of torch.profiler.schedule and of HF's schedule_option. The
/// first `skip_first` steps are left alone; then come cycles of `wait` steps without, `warmup` steps in which
/// the profiler gets ready (its start disturbs what it measures), and `active` steps that are recorded.
struct ProfileSchedule {
  int64_t wait = 0;
  int64_t warmup = 0;
  int64_t active = 1;
  /// Cycles; 0: until the profiler stops.
  int64_t repeat = 0;
  int64_t skip_first = 0;
  /// The first cycle has no `wait`.
  bool skip_first_wait = false;
};

enum class ProfilerAction {
  kNone,
  kWarmup,
  kRecord,
  kRecordAndSave,  ///< the last recorded step of a cycle
};

/// What is done in step `step` (from 0).
/// @throws ConfigError for numbers that can't be: negative ones, or active < 1.
ProfilerAction profiler_action(const ProfileSchedule& schedule, int64_t step);

}  // namespace accelerate
