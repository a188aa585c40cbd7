#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "accelerate/core/error.h"
#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/reading.h"
#include "accelerate/launch/agent_link.h"
#include "accelerate/launch/coordinator_server.h"
#include "accelerate/launch/listen_socket.h"
#include "accelerate/launch/report.h"
#include "accelerate/launch/run_support.h"
#include "accelerate/launch/supervisor.h"

// Several machines
// ----------------
// Every machine runs a launcher. That of machine 0 has a second role, the coordinator, in a thread; all
// launchers, its own among them, connect to it as agents. Only the coordinator decides: an agent starts ranks
// when told to (kStart), stops them when told to or when one fails (kStop, kFailed), says when none is left
// (kEnded), and ends when told to (kEnd). So all machines start, restart and end together. Both sides send
// signs of life; silence or a closed connection makes a machine lost, and for an agent the loss of the
// coordinator is the end. The store of rank 0 gets a new port for every attempt, so that ranks of an earlier
// one can't disturb.

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;

// What ranks need to die after the grace period, and messages to travel.
constexpr milliseconds kStopMargin{5000};
constexpr size_t kMaxJobBytes = 60;  // of the common job id in this launcher's

NetAddress address_to_listen_at(const MachinesPlan& machines) {
  std::string error;
  const std::vector<NetAddress> found = resolve(machines.address, machines.port, error);
  if (found.empty()) {
    throw LaunchError({.what = concat("main_process_ip ", machines.address, " is not known: ", error)});
  }
  // Other machines try all addresses of the name; IPv4 is what they are likeliest to have a way to.
  const auto ipv4 = std::find_if(found.begin(), found.end(), [](const NetAddress& candidate) {
    return candidate.storage.ss_family == AF_INET;
  });
  const NetAddress& address = ipv4 == found.end() ? found.front() : *ipv4;
  const bool meant = is_loopback(machines.address) || !address.loopback();
  if (meant) return address;
  // Many systems give their own name a loopback address, at which no other machine could reach us.
  std::string ignored;
  return resolve("0.0.0.0", machines.port, ignored).front();
}

bool may_be_elsewhere(int error) {
  return error == EADDRINUSE || error == EADDRNOTAVAIL;
}

// Empty where another machine has to coordinate.
UniqueFd open_coordinator_port(const MachinesPlan& machines) {
  if (machines.machine_rank.value_or(0) != 0) return {};
  int error = 0;
  UniqueFd fd = listen_at(address_to_listen_at(machines), error);
  if (fd || (!machines.machine_rank && may_be_elsewhere(error))) return fd;
  const std::string where = concat(machines.address, ":", machines.port);
  if (error == EADDRINUSE) {
    const std::string holder = describe_port_holder(machines.port);
    throw LaunchError({.what = concat("port ", machines.port, " of ", machines.address, " is taken",
                                      holder.empty() ? "" : ", ", holder),
                       .hint =
                           "Give all machines another one with --main_process_port. If another launcher of "
                           "this job runs on this host, it has machine_rank 0, and this one needs another "
                           "--machine_rank."});
  }
  if (error == EADDRNOTAVAIL) {
    throw LaunchError({.what = concat(machines.address, " is no address of this machine (host ", host_name(),
                                      "), which has machine_rank 0"),
                       .hint = "Machine 0 must be the one that has --main_process_ip; give this one another "
                               "--machine_rank, or correct the address."});
  }
  throw LaunchError({.what = concat("can't listen at ", where, ": ", errno_text(error))});
}

CoordinatorOptions coordinator_options(const LaunchPlan& plan, const std::string& nonce) {
  const MachinesPlan& machines = *plan.machines;
  CoordinatorOptions out;
  out.min_machines = machines.min_machines;
  out.max_machines = machines.max_machines;
  out.fixed_ranks = machines.machine_rank.has_value();
  out.local_processes = plan.num_processes;
  out.token = machines.token;
  out.nonce = nonce;
  out.host = host_name();
  out.job_id = plan.job_id.empty() ? random_id() : plan.job_id;
  out.max_restarts = plan.max_restarts;
  out.restart_delay = plan.restart_delay;
  out.heartbeat_timeout = machines.heartbeat_timeout;
  out.connect_timeout = machines.connect_timeout;
  out.last_call = machines.last_call;
  out.stop_timeout = plan.grace_period + kStopMargin;
  return out;
}

AgentOptions agent_options(const LaunchPlan& plan, const std::string& nonce) {
  const MachinesPlan& machines = *plan.machines;
  AgentOptions out;
  out.address = machines.address;
  out.port = machines.port;
  out.hello = {.type = MessageType::kHello,
               .version = kProtocolVersion,
               .machine = machines.machine_rank.value_or(-1),
               .machines = machines.max_machines,
               .local_processes = plan.num_processes};
  out.hello.token = machines.token;
  out.hello.nonce = nonce;
  out.hello.host = host_name();
  out.connect_timeout = machines.connect_timeout;
  out.heartbeat_timeout = machines.heartbeat_timeout;
  return out;
}

// This machine's part of the job, from the first connection to the common end.
class MachineJob final : public PeerMachines {
 public:
  explicit MachineJob(const LaunchPlan& plan)
      : plan_(plan),
        console_(plan.output, plan.num_processes, plan.num_processes * plan.machines->max_machines) {
    if (plan.handle_signals) signals_.emplace(signals_to_handle());
    const std::string nonce = random_id();
    if (UniqueFd port = open_coordinator_port(*plan.machines)) {
      reserved_ = reserve_any_port(local_address(port.get()));
      CoordinatorOptions options = coordinator_options(plan, nonce);
      options.master_port = reserved_.port;
      server_ = std::make_unique<CoordinatorServer>(std::move(port), std::move(options));
    }
    link_ = std::make_unique<AgentLink>(agent_options(plan, server_ ? nonce : std::string()));
  }

  LaunchResult run() {
    while (const auto start = wait_for_start()) run_attempt(*start);
    if (!end_->text.empty() && !knows(*end_)) console_.say(end_->text);
    if (end_->code != 0) console_.begin_stop();
    const auto late = console_.drain(signals_ ? &*signals_ : nullptr);
    if (late && end_->code == 0) {
      end_->code = 128 + *late;
      end_->signal = *late;
    }
    LaunchResult result;
    result.exit_code = static_cast<int>(end_->code);
    result.failure = failure_;
    if (end_->signal != 0) result.stopped_by_signal = static_cast<int>(end_->signal);
    result.restarts = std::max(0, attempt_);
    return result;
  }

  int fd() const override { return link_->fd(); }
  std::optional<PeerStop> next_stop() override;
  void tell_failure(const RankFailure& failure) override {
    MachineMessage message{.type = MessageType::kFailed, .attempt = attempt_};
    message.code = failure.status.shell_code();
    message.text = describe_end(failure);
    link_->send(message);
  }
  void tell_signal(int number) override {
    MachineMessage message{.type = MessageType::kSignal};
    message.signal = number;
    link_->send(message);
  }

 private:
  std::optional<MachineMessage> wait_for_start();
  void signal_while_waiting(int number);
  bool knows(const MachineMessage& news) const;
  void run_attempt(const MachineMessage& start);
  std::optional<Supervisor::Outcome> supervise(const MachineMessage& start);

  const LaunchPlan& plan_;
  Console console_;
  std::optional<SignalPipe> signals_;
  ReservedPort reserved_;  ///< of the coordinator's machine
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<AgentLink> link_;
  std::optional<SharedMemorySweep> shared_memory_;
  std::optional<Guardian> guardian_;
  std::optional<MachineMessage> end_;
  std::optional<RankFailure> failure_;
  std::string own_job_id_;
  int attempt_ = -1;
  int machine_ = -1;
  int signals_seen_ = 0;
  // What the user has been told about the current attempt.
  bool failed_here_ = false;
  bool stopped_here_ = false;
  bool peer_signal_told_ = false;
};

std::optional<PeerStop> MachineJob::next_stop() {
  while (auto message = link_->next()) {
    if (message->type == MessageType::kEnd) {
      end_ = std::move(message);
      return PeerStop{.why = end_->text, .signal = static_cast<int>(end_->signal)};
    }
    if (message->type == MessageType::kStop)
      return PeerStop{.why = message->text, .signal = static_cast<int>(message->signal)};
    if (message->type == MessageType::kStatus) console_.inform(message->text);
  }
  return std::nullopt;
}

void MachineJob::signal_while_waiting(int number) {
  tell_signal(number);
  ++signals_seen_;
  // Once ranks have run, the coordinator ends all machines, this one too; whoever asks twice need not wait.
  if (attempt_ >= 0 && signals_seen_ < 2) return;
  end_ = MachineMessage{.type = MessageType::kEnd};
  end_->code = 128 + number;
  end_->signal = number;
}

// True if what a kEnd or kRestart says about its cause has been printed by this launcher.
bool MachineJob::knows(const MachineMessage& news) const {
  if (news.signal != 0) return stopped_here_ || peer_signal_told_;
  return failed_here_ && news.machine == machine_;
}

// The next kStart; nothing when the job is over, and then end_ says how.
std::optional<MachineMessage> MachineJob::wait_for_start() {
  while (!end_) {
    std::vector<pollfd> items = {{link_->fd(), POLLIN, 0}, {signals_ ? signals_->fd() : -1, POLLIN, 0}};
    console_.add_poll_items(items);
    ::poll(items.data(), items.size(), console_.poll_timeout_ms());
    console_.run_output(Console::Clock::now());
    while (signals_ && !end_) {
      const auto number = signals_->next();
      if (!number) break;
      signal_while_waiting(*number);
    }
    while (!end_) {
      auto message = link_->next();
      if (!message) break;
      if (message->type == MessageType::kStart) return message;
      if (message->type == MessageType::kStatus) console_.inform(message->text);
      if (message->type == MessageType::kRestart) {
        const std::string& text = message->text;
        const size_t end = text.rfind('\n');
        if (!knows(*message)) console_.say(text.substr(0, end));
        console_.inform(text.substr(end + 1));
      }
      if (message->type == MessageType::kEnd) end_ = std::move(message);
    }
  }
  return std::nullopt;
}

std::optional<Supervisor::Outcome> MachineJob::supervise(const MachineMessage& start) {
  Supervisor supervisor(plan_, console_, *guardian_, signals_ ? &*signals_ : nullptr, this);
  UniqueFd store;
  try {
    console_.renumber(static_cast<int>(start.first_rank));
    if (server_) store = server_->take_store_socket(attempt_);
    JobFacts job{.job_id = own_job_id_,
                 .master_addr = start.address,
                 .master_port = static_cast<int>(start.master_port),
                 .store_port = static_cast<int>(start.port),
                 .restart_count = attempt_,
                 .listen_fd = std::nullopt,
                 .machine = machine_,
                 .machines = static_cast<int>(start.machines),
                 .first_rank = static_cast<int>(start.first_rank),
                 .world_size = static_cast<int>(start.num_processes)};
    if (store) job.listen_fd = store.get();
    supervisor.start(job, threads_per_rank(plan_));
    store.reset();  // rank 0 alone holds it
  } catch (const Error& error) {
    console_.say(error.what());
    MachineMessage message{.type = MessageType::kFailed, .attempt = attempt_};
    message.code = error.exit_code();
    message.text = error.what();
    link_->send(message);
    failed_here_ = true;
    return std::nullopt;
  }
  return supervisor.watch();
}

void MachineJob::run_attempt(const MachineMessage& start) {
  attempt_ = static_cast<int>(start.attempt);
  machine_ = static_cast<int>(start.machine);
  failed_here_ = stopped_here_ = peer_signal_told_ = false;
  failure_.reset();
  if (!guardian_) {
    // Launchers of one job may share a machine; each removes what its own ranks left and nothing else.
    own_job_id_ = to_job_id(concat(start.job.substr(0, kMaxJobBytes), "-", random_id()));
    shared_memory_.emplace(own_job_id_);
    guardian_.emplace(plan_.num_processes, own_job_id_);
  }
  if (const auto outcome = supervise(start)) {
    if (!outcome->unkillable.empty()) {
      console_.say(
          concat(format_ranks(outcome->unkillable), " did not even end by SIGKILL: hanging in the kernel"));
    }
    failure_ = outcome->failure;
    if (failure_) console_.say(describe_failure(*outcome, console_));
    failed_here_ = failure_.has_value();
    stopped_here_ = outcome->stopped_by_signal.has_value();
    peer_signal_told_ = outcome->stopped_by_peer && !plan_.output.quiet && !outcome->stopped.empty();
  }
  shared_memory_->sweep();
  link_->send({.type = MessageType::kEnded, .attempt = attempt_});
}

}  // namespace

LaunchResult run_on_machines(const LaunchPlan& plan) {
  raise_descriptor_limit(plan.num_processes + plan.machines->max_machines);
  const IgnoreSigpipe ignore_sigpipe;
  return MachineJob(plan).run();
}

}  // namespace accelerate::detail
