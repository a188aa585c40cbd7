#include "accelerate/tracking/profiler.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <thread>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/kineto_session_internal.h"

namespace accelerate {
namespace {

using detail::KinetoOptions;
using detail::KinetoSession;
using detail::KinetoTrace;

bool records(ProfilerAction action) {
  return action == ProfilerAction::kRecord || action == ProfilerAction::kRecordAndSave;
}

bool wants_cuda(const ProcessContext& context, const std::vector<std::string>& activities) {
  if (activities.empty()) return context.device.is_cuda();
  bool cuda = false;
  for (const std::string& activity : activities) {
    if (to_lower(activity) == "cuda") {
      cuda = true;
    } else if (to_lower(activity) != "cpu") {
      throw ConfigError({.what = "activities of a profiler",
                         .expected = "'cpu' or 'cuda'",
                         .got = concat("'", activity, "'"),
                         .rank = context.topology.rank});
    }
  }
  if (cuda && !at::hasCUDA()) {
    throw ConfigError({.what = "activity 'cuda' of a profiler",
                       .expected = "a CUDA device",
                       .got = "none that this program can use",
                       .hint = "Leave it out, or build the CUDA variant with -DACCELERATE_CUDA=ON.",
                       .rank = context.topology.rank});
  }
  return cuda;
}

KinetoOptions kineto_options(const ProcessContext& context, const ProfileOptions& options) {
  const std::string backend = context.communicator ? context.communicator->backend_name() : "none";
  // What tools that compare ranks look for; Python's profiler writes the same.
  const std::string ranks = concat(R"({"backend": ")", backend, R"(", "rank": )", context.topology.rank,
                                   R"(, "world_size": )", context.topology.world_size, "}");
  return {.cuda = wants_cuda(context, options.activities),
          .record_shapes = options.record_shapes || options.with_flops,  // what flops are counted from
          .profile_memory = options.profile_memory,
          .with_stack = options.with_stack,
          .with_flops = options.with_flops,
          .with_modules = options.with_modules,
          .all_threads = options.all_threads,
          .metadata = {{"distributedInfo", ranks}}};
}

// Fails now rather than after hours of training.
void require_writable(const std::string& directory, int rank) {
  FileSystem& files = system_files();
  const std::string probe = concat(directory, "/.profile_", rank, ".json.probe");
  files.create_directories(directory);
  files.create(probe)->close();
  files.remove(probe);
}

}  // namespace

struct Profiler::Impl {
  Impl(const ProcessContext& context_, ProfileOptions options_)
      : context(context_), options(std::move(options_)) {
    session = std::make_unique<KinetoSession>(kineto_options(context, options));
  }

  int rank() const { return context.topology.rank; }
  bool recording() const { return session != nullptr && session->recording(); }
  std::string path() const { return concat(*options.output_trace_dir, "/profile_", rank(), ".json"); }

  ProfilerAction action_of(int64_t step) const {
    return options.schedule_option ? profiler_action(*options.schedule_option, step)
                                   : ProfilerAction::kRecord;
  }

  void begin_step() {
    if (!recording()) return;
    step_range = std::make_unique<ProfileScope>(concat("ProfilerStep#", step));
  }

  // From the current step's action to that of the next step.
  void go_on(Profiler& self, ProfilerAction next) {
    if (action == ProfilerAction::kRecordAndSave) end_cycle(self, session->stop());
    action = next;
    if (next == ProfilerAction::kWarmup) session->prepare();
    if (records(next) && !recording()) session->start();
  }

  void end_cycle(Profiler& self, std::unique_ptr<KinetoTrace> complete) {
    trace = std::move(complete);
    // The trace is complete: whatever goes wrong now, the next step is not the end of a cycle.
    action = ProfilerAction::kNone;
    ++num_traces;
    if (options.output_trace_dir) write_file_atomically(system_files(), path(), trace->json(path()));
    if (options.on_trace_ready) options.on_trace_ready(self);
  }

  void require_own_thread() const {
    if (std::this_thread::get_id() == thread) return;
    throw Error({.what = "a profiler was used on another thread than the one that made it",
                 .hint = "Call step(), stop() and finish() where the profiler was made.",
                 .rank = rank()});
  }

  KinetoTrace& last_trace() const {
    if (trace) return *trace;
    throw Error({.what = "the profiler has no complete trace yet",
                 .hint = "Call stop() first, or wait for the end of a cycle of the schedule.",
                 .rank = rank()});
  }

  ProcessContext context;
  ProfileOptions options;
  std::unique_ptr<KinetoSession> session;  // null once stopped
  std::thread::id thread = std::this_thread::get_id();
  ProfilerAction action = ProfilerAction::kNone;
  int64_t step = 0;
  int64_t num_traces = 0;
  std::unique_ptr<KinetoTrace> trace;
  std::unique_ptr<ProfileScope> step_range;
};

Profiler::Profiler(const ProcessContext& context, ProfileOptions options) {
  if (options.schedule_option) profiler_action(*options.schedule_option, 0);
  if (options.output_trace_dir) require_writable(*options.output_trace_dir, context.topology.rank);
  impl_ = std::make_unique<Impl>(context, std::move(options));
  impl_->go_on(*this, impl_->action_of(0));
  impl_->begin_step();
}

Profiler::~Profiler() {
  try {
    stop();
  } catch (const std::exception& error) {
    impl_->context.logger->error(concat("profile: ", error_message(error)), LogRanks::kAll);
  } catch (...) {
    impl_->context.logger->error("profile: on_trace_ready threw something that is no exception",
                                 LogRanks::kAll);
  }
}

void Profiler::step() {
  Impl& impl = *impl_;
  impl.require_own_thread();
  if (!impl.session) return;
  impl.step_range.reset();
  ++impl.step;
  impl.go_on(*this, impl.action_of(impl.step));
  impl.begin_step();
}

void Profiler::stop() {
  Impl& impl = *impl_;
  if (!impl.session) return;
  impl.require_own_thread();
  impl.step_range.reset();
  // Leaves the process's profiler to others, whatever writing the trace brings.
  const auto session = std::move(impl.session);
  if (session->recording()) impl.end_cycle(*this, session->stop());
  if (impl.num_traces == 0) {
    impl.context.logger->warning(
        concat("profile: nothing was recorded, since the ", impl.step,
               impl.step == 1 ? " step was" : " steps were", " over before the schedule's active part began"),
        LogRanks::kAll);
  }
}

void Profiler::finish() {
  std::exception_ptr problem;
  try {
    stop();
  } catch (...) {
    problem = std::current_exception();
  }
  at::Tensor failed = at::full({1}, problem ? 1 : 0, at::TensorOptions(at::kLong));
  impl_->context.communicator->all_reduce(failed);
  if (problem) std::rethrow_exception(problem);
  if (failed.item<int64_t>() == 0) return;
  throw CheckpointError({.what = concat("the profiles of ", failed.item<int64_t>(), " of ",
                                        impl_->context.topology.world_size, " ranks are not complete"),
                         .hint = "Those ranks say why.",
                         .rank = impl_->rank(),
                         .echo = true});
}

int64_t Profiler::step_num() const {
  return impl_->step;
}

bool Profiler::recording() const {
  return impl_->recording();
}

int64_t Profiler::num_traces() const {
  return impl_->num_traces;
}

std::vector<OperatorTime> Profiler::key_averages() const {
  return add_up_spans(impl_->last_trace().spans());
}

std::string Profiler::table(int64_t row_limit) const {
  return format_operator_times(key_averages(), row_limit);
}

void Profiler::export_chrome_trace(const std::string& path) const {
  write_file_atomically(system_files(), path, impl_->last_trace().json(path));
}

}  // namespace accelerate
