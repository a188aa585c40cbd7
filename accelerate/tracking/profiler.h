#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/comm/process_context.h"
#include "accelerate/tracking/operator_times.h"
#include "accelerate/tracking/profile_schedule.h"
#include "accelerate/tracking/profile_scope.h"

namespace accelerate {

class Profiler;

/// What a Profiler records; HF Accelerate's ProfileKwargs, with its names.
struct ProfileOptions {
  /// "cpu", "cuda". Default: "cpu", and "cuda" where this rank's device is one. "cpu" is always in it.
  std::vector<std::string> activities = {};
  /// Which steps are recorded. Default: all that the profiler sees, as one trace.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;
  /// Called at the end of each recorded cycle, with its trace: key_averages(), table() and
  /// export_chrome_trace() of the profiler speak of it until the next one is complete.
  std::function<void(Profiler&)> on_trace_ready = {};
  /// Adds the inputs' shapes and dtypes to operators. Holds on to their tensors meanwhile.
  bool record_shapes = false;
  /// Adds memory that is taken and given back.
  bool profile_memory = false;
  /// The stack of operators; torch knows it for TorchScript modules only, not for C++ code.
  bool with_stack = false;
  /// Estimates the floating-point operations of matrix products and convolutions.
  bool with_flops = false;
  /// The modules around operators; for TorchScript modules only.
  bool with_modules = false;
  /// Folder for profile_<rank>.json, made where missing: the trace of the last complete cycle, in the Chrome
  /// trace event format that ui.perfetto.dev and chrome://tracing open. Default: no file.
  std::optional<std::string> output_trace_dir = std::nullopt;
  /// Records the operators of all threads of this process, such as those of data loader workers. Default: of
  /// the profiler's own thread and of the threads on which autograd works for it.
  bool all_threads = false;
};

/// Records what this rank does, and for how long, from its constructor to stop() or the end of the scope:
///
///     auto profiler = accelerator.profile({.schedule_option = ProfileSchedule{.wait = 2, .warmup = 1,
///                                          .active = 3, .repeat = 1}, .output_trace_dir = "traces"});
///     for (auto& batch : loader) {
///       ...
///       profiler.step();
///     }
///     profiler.finish();
///
/// The trace holds operators, autograd's nodes, steps as "ProfilerStep#N", collectives as
/// "accelerate::all_reduce" and the like, and every ProfileScope. A body that is left by an exception leaves
/// the profiler off and the trace of what was recorded written.
///
/// All methods are local but finish(), and belong to the thread that made the profiler. There is one profiler
/// a process at a time, since torch has one: where ranks are threads, only one of them can profile.
class Profiler {
 public:
  /// Local. Starts recording, or what the schedule says for step 0.
  /// @throws ConfigError for options that can't be met, CheckpointError naming the folder if nothing can be
  /// written there, Error when a profiler is running already.
  explicit Profiler(const ProcessContext& context, ProfileOptions options = {});
  /// Local. As stop(); what stop() would throw is logged.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Local. A step has ended and the next one begins. Where the ended one was the last of a cycle, the trace
  /// is written and on_trace_ready is called.
  /// @throws CheckpointError naming the path if the trace can't be written; what on_trace_ready throws.
  void step();

  /// Local. Ends recording; a cycle that is not complete is a trace as well. Further calls do nothing.
  /// @throws as step().
  void stop();

  /// Collective. stop(), then waits until all ranks have written their traces: afterwards one rank may read
  /// them all. Without output_trace_dir there is nothing to wait for, but all ranks must call it just the
  /// same.
  /// @throws on every rank when one could not write its trace.
  void finish();

  /// Number of the current step, from 0.
  int64_t step_num() const;
  /// Operators are being recorded.
  bool recording() const;
  /// Cycles that are complete.
  int64_t num_traces() const;

  /// Times and counts by operator in the last complete trace, the largest self time first. What Python's
  /// prof.key_averages() says, see add_up_spans().
  /// @throws Error when there is no trace yet.
  std::vector<OperatorTime> key_averages() const;
  /// key_averages() as a table.
  std::string table(int64_t row_limit = 100) const;
  /// Writes the last complete trace to `path`, in one piece or not at all.
  /// @throws CheckpointError naming the path, Error when there is no trace yet.
  void export_chrome_trace(const std::string& path) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerate
