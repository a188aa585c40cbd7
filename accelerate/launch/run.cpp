#include <poll.h>

#include <algorithm>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"
#include "accelerate/launch/listen_socket.h"
#include "accelerate/launch/report.h"
#include "accelerate/launch/run_support.h"
#include "accelerate/launch/supervisor.h"

namespace accelerate {
namespace {

using detail::Console;
using detail::Guardian;
using detail::ReservedPort;
using detail::SignalPipe;
using detail::Supervisor;
using std::chrono::milliseconds;

constexpr milliseconds kMaxRestartDelay{30000};

// True if a signal came meanwhile; it is then in `outcome`.
bool wait_before_restart(SignalPipe* signals, milliseconds delay, Console& console,
                         Supervisor::Outcome& outcome) {
  const Deadline deadline = Deadline::after(delay);
  while (!deadline.expired()) {
    std::vector<pollfd> items = {{signals != nullptr ? signals->fd() : -1, POLLIN, 0}};
    console.add_poll_items(items);
    ::poll(items.data(), items.size(), deadline.poll_timeout_ms());
    console.run_output(Console::Clock::now());
    if (signals == nullptr) continue;
    if (const auto number = signals->next()) {
      outcome.stopped_by_signal = *number;
      return true;
    }
  }
  return false;
}

void report_end(const LaunchPlan& plan, const Supervisor::Outcome& outcome, Console& console) {
  if (!outcome.unkillable.empty()) {
    const std::string who = plan.starter ? plan.starter->name : format_ranks(outcome.unkillable);
    console.say(concat(who, " did not even end by SIGKILL: hanging in the kernel"));
  }
  if (outcome.failure && !outcome.stopped_by_signal) {
    console.say(plan.starter ? detail::describe_starter_failure(outcome, plan.starter->name)
                             : detail::describe_failure(outcome, console));
  }
}

// After all that was said has been read.
LaunchResult to_result(Supervisor::Outcome& outcome, int restarts, Console& console, SignalPipe* signals) {
  const auto late = console.drain(signals);
  // A job that failed keeps its own exit code.
  if (late && !outcome.failure && !outcome.stopped_by_signal) outcome.stopped_by_signal = *late;
  LaunchResult result{.exit_code = 0,
                      .failure = outcome.failure,
                      .stopped_by_signal = outcome.stopped_by_signal,
                      .restarts = restarts};
  if (outcome.stopped_by_signal) {
    result.exit_code =
        outcome.saved_first ? static_cast<int>(ExitCode::kPreempted) : 128 + *outcome.stopped_by_signal;
  } else if (outcome.failure) {
    result.exit_code = outcome.failure->status.shell_code();
  }
  return result;
}

}  // namespace

LaunchResult run(const LaunchPlan& plan) {
  if (plan.num_processes < 1) {
    throw LaunchError(
        {.what = "num_processes", .expected = "at least 1", .got = std::to_string(plan.num_processes)});
  }
  if (plan.machines) return detail::run_on_machines(plan);
  detail::raise_descriptor_limit(plan.num_processes);
  const detail::IgnoreSigpipe ignore_sigpipe;
  const std::string job_id = plan.job_id.empty() ? detail::random_id() : plan.job_id;
  const detail::SharedMemorySweep shared_memory(job_id);
  Console console(plan.output, plan.num_processes, plan.num_processes, plan.starter.has_value());
  console.renumber(0);
  ReservedPort reserved;
  UniqueFd store;
  if (!plan.starter) {
    reserved = detail::reserve_port(plan.main_process_port);
    store = detail::open_store_socket();
  }
  // A rank alone has nobody to meet there.
  if (!reserved.note.empty() && plan.num_processes > 1) console.inform(reserved.note);

  std::optional<SignalPipe> signals;
  if (plan.handle_signals) signals.emplace(detail::signals_to_handle());
  SignalPipe* const signal_source = signals ? &*signals : nullptr;
  Guardian guardian(plan.num_processes, job_id, plan.starter ? plan.starter->stop_time : milliseconds(0));
  const int threads = threads_per_rank(plan);

  milliseconds delay = plan.restart_delay;
  for (int restarts = 0;; ++restarts) {
    Supervisor supervisor(plan, console, guardian, signal_source);
    if (plan.starter) {
      supervisor.start_starter(job_id);
    } else {
      supervisor.start({.job_id = job_id,
                        .master_addr = "127.0.0.1",
                        .master_port = reserved.port,
                        .store_port = detail::local_address(store.get()).port(),
                        .restart_count = restarts,
                        .listen_fd = store.get(),
                        .world_size = plan.num_processes},
                       threads);
    }
    // Rank 0 alone holds the store's port from here on, unless another attempt may need it.
    if (restarts == plan.max_restarts) store.reset();
    Supervisor::Outcome outcome = supervisor.watch();
    if (plan.starter) detail::kill_processes_of_job(job_id);
    report_end(plan, outcome, console);
    const bool again =
        outcome.failure && !outcome.stopped_by_signal && !outcome.interrupted && restarts < plan.max_restarts;
    if (!again) return to_result(outcome, restarts, console, signal_source);
    shared_memory.sweep();
    console.inform(detail::describe_restart(restarts + 1, plan.max_restarts, delay));
    if (wait_before_restart(signal_source, delay, console, outcome))
      return to_result(outcome, restarts, console, signal_source);
    delay = std::min(2 * delay, kMaxRestartDelay);
  }
}

}  // namespace accelerate
