#include "accelerate/tracking/profile_schedule.h"

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void check(const ProfileSchedule& schedule) {
  const bool counts =
      schedule.wait >= 0 && schedule.warmup >= 0 && schedule.repeat >= 0 && schedule.skip_first >= 0;
  if (counts && schedule.active > 0) return;
  throw ConfigError(
      {.what = "schedule of a profiler",
       .expected = "active >= 1, and wait, warmup, repeat and skip_first >= 0",
       .got = concat("wait ", schedule.wait, ", warmup ", schedule.warmup, ", active ", schedule.active,
                     ", repeat ", schedule.repeat, ", skip_first ", schedule.skip_first)});
}

}  // namespace

ProfilerAction profiler_action(const ProfileSchedule& schedule, int64_t step) {
  check(schedule);
  if (step < schedule.skip_first) return ProfilerAction::kNone;
  step -= schedule.skip_first;
  if (schedule.skip_first_wait) step += schedule.wait;
  const int64_t cycle = schedule.wait + schedule.warmup + schedule.active;
  if (schedule.repeat > 0 && step / cycle >= schedule.repeat) return ProfilerAction::kNone;
  const int64_t place = step % cycle;
  if (place < schedule.wait) return ProfilerAction::kNone;
  if (place < schedule.wait + schedule.warmup) return ProfilerAction::kWarmup;
  return place + 1 < cycle ? ProfilerAction::kRecord : ProfilerAction::kRecordAndSave;
}

}  // namespace accelerate
