#include "accelerate/launch/coordinator.h"

#include <algorithm>
#include <set>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/launch/report.h"

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStatusInterval{10000};
constexpr milliseconds kMaxRestartDelay{30000};
constexpr int kLostCode = static_cast<int>(ExitCode::kCommError);

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, Clock::time_point now)
    : options_(std::move(options)),
      delay_(options_.restart_delay),
      gathering_since_(now),
      next_status_(now + kStatusInterval),
      next_beat_(now) {}

void Coordinator::received(Connection connection, const MachineMessage& message,
                           const std::string& reached_at, Clock::time_point now) {
  if (finished()) return;
  const auto found = members_.find(connection);
  if (found == members_.end()) {
    if (message.type == MessageType::kHello) return greet(connection, message, reached_at, now);
    MachineMessage refused{.type = MessageType::kRefused};
    refused.text = "this port is that of an `accel launch` over several machines";
    return send(connection, refused, true);
  }
  Member& member = found->second;
  member.last_seen = now;
  const bool current = member.active && message.attempt == attempt_;
  if (message.type == MessageType::kFailed && current && phase_ == Phase::kRunning) {
    stop({.machine = member.machine,
          .text = concat(name(member), ": ", message.text),
          .code = std::max(1, static_cast<int>(message.code))},
         now);
  } else if (message.type == MessageType::kSignal) {
    handle_signal(member, static_cast<int>(message.signal), now);
  } else if (message.type == MessageType::kEnded && current) {
    member.ended = true;
  }
  advance(now);
}

std::string Coordinator::refusal(const MachineMessage& hello, bool own) const {
  const std::string here = concat("the coordinator on host ", options_.host);
  const std::string there = concat("host ", hello.host);
  if (hello.version != kProtocolVersion) {
    return concat("protocol version ", hello.version, " (", there, ") and ", kProtocolVersion, " (", here,
                  ") don't fit: use the same release of accel on all machines");
  }
  if (hello.token != options_.token) {
    return concat("the job at host ", options_.host, " is another one: its --rdzv_id is not that of ", there);
  }
  const bool elastic = hello.machine < 0;
  if (elastic == options_.fixed_ranks) {
    return concat("rdzv_backend is ", elastic ? "c10d" : "static", " on ", there, " and ",
                  elastic ? "static" : "c10d", " at ", here);
  }
  if (hello.machines != options_.max_machines) {
    return concat("num_machines is ", hello.machines, " on ", there, " and ", options_.max_machines, " at ",
                  here);
  }
  if (hello.local_processes != options_.local_processes) {
    return concat("num_processes is ", hello.local_processes * hello.machines, " (", hello.local_processes,
                  " a machine) on ", there, " and ", options_.local_processes * options_.max_machines, " (",
                  options_.local_processes, " a machine) at ", here);
  }
  for (const auto& [connection, member] : members_) {
    if (elastic || member.machine != hello.machine) continue;
    return concat("machine_rank ", hello.machine, " is taken by host ", member.host, ", and ", there,
                  " claims it too: each machine needs a --machine_rank of its own");
  }
  if (!own && elastic && static_cast<int>(members_.size()) >= options_.max_machines)
    return concat("the job has all of its ", options_.max_machines, " machines");
  return {};
}

// Those that wait would otherwise not know why. One that asks again and again is told of once.
void Coordinator::tell_refusal(const MachineMessage& hello, const std::string& why) {
  const std::string text = concat("host ", hello.host, " was refused: ", why);
  if (text == last_refusal_) return;
  last_refusal_ = text;
  MachineMessage status{.type = MessageType::kStatus};
  status.text = text;
  send_to_all(status);
}

void Coordinator::greet(Connection connection, const MachineMessage& hello, const std::string& reached_at,
                        Clock::time_point now) {
  const bool own = !options_.nonce.empty() && hello.nonce == options_.nonce;
  if (std::string why = refusal(hello, own); !why.empty()) {
    tell_refusal(hello, why);
    MachineMessage refused{.type = MessageType::kRefused};
    refused.text = std::move(why);
    return send(connection, refused, true);
  }
  members_[connection] = {.machine = static_cast<int>(hello.machine),
                          .host = hello.host,
                          .reached_at = reached_at,
                          .own = own,
                          .served = false,
                          .active = false,
                          .ended = false,
                          .last_seen = now};
  MachineMessage welcome{.type = MessageType::kWelcome, .machine = 0};
  welcome.host = options_.host;
  welcome.heartbeat_ms = options_.heartbeat_timeout.count();
  send(connection, welcome);
  // Somebody may have come before our own machine did.
  if (own && !last_refusal_.empty()) {
    MachineMessage status{.type = MessageType::kStatus};
    status.text = last_refusal_;
    send(connection, status);
  }
  if (phase_ == Phase::kRunning || phase_ == Phase::kStopping) {
    MachineMessage status{.type = MessageType::kStatus};
    status.text = "the job is running already; this machine joins at its next restart";
    send(connection, status);
  }
  advance(now);
}

void Coordinator::handle_signal(const Member& from, int number, Clock::time_point now) {
  // A machine that leaves before it had any part is merely missing again, and may come back.
  if (!from.served && !from.own) return;
  Cause cause{.machine = from.machine,
              .text = concat(name(from), " was stopped by ", signal_name(number)),
              .code = 128 + number,
              .signal = number,
              .final = true};
  if (phase_ == Phase::kRunning) return stop(std::move(cause), now);
  // A failure that is being dealt with keeps its name; only the restart is off.
  if (cause_) {
    cause_->final = true;
  } else {
    cause_ = std::move(cause);
  }
  if (phase_ != Phase::kStopping) finish();
}

void Coordinator::gone(Connection connection, const std::string& reason, Clock::time_point now) {
  if (!finished() && is_member(connection)) lose(connection, concat("connection lost: ", reason), now);
}

void Coordinator::lose(Connection connection, const std::string& how, Clock::time_point now) {
  const Member member = members_.at(connection);
  members_.erase(connection);
  // Its part was done; the others may end in peace.
  const bool missed = member.active && !(member.ended && phase_ == Phase::kRunning);
  if (phase_ == Phase::kRunning && missed) {
    stop({.machine = member.machine, .text = concat(name(member), " is lost: ", how), .code = kLostCode},
         now);
  } else if (phase_ == Phase::kGathering || phase_ == Phase::kPausing) {
    MachineMessage status{.type = MessageType::kStatus};
    status.text = concat(name(member), " left: ", how);
    send_to_all(status);
  }
  advance(now);
}

void Coordinator::drop_silent(Clock::time_point now) {
  std::vector<Connection> silent;
  for (const auto& [connection, member] : members_) {
    if (now - member.last_seen >= options_.heartbeat_timeout) silent.push_back(connection);
  }
  for (const Connection connection : silent) {
    if (!is_member(connection)) continue;
    const std::string how = concat("nothing heard for ", seconds_text(options_.heartbeat_timeout));
    MachineMessage refused{.type = MessageType::kRefused};
    refused.code = kLostCode;
    refused.text = concat("the coordinator on host ", options_.host, " gave this machine up: ", how);
    send(connection, refused, true, false);
    lose(connection, how, now);
  }
}

void Coordinator::tick(Clock::time_point now) {
  if (finished()) return;
  drop_silent(now);
  if (finished()) return;
  if (now >= next_beat_) {
    next_beat_ = now + options_.heartbeat_timeout / 5;
    send_to_all({.type = MessageType::kBeat});
  }
  advance(now);
}

void Coordinator::advance(Clock::time_point now) {
  if (phase_ == Phase::kGathering) gather(now);
  if (phase_ == Phase::kRunning && all_ended()) {
    cause_.reset();
    finish();
  }
  if (phase_ == Phase::kStopping && (all_ended() || now >= phase_until_)) finish_stop(now);
  if (phase_ == Phase::kPausing && now >= phase_until_) {
    phase_ = Phase::kGathering;
    gathering_since_ = now;
    next_status_ = now + kStatusInterval;
    last_call_until_.reset();
    gather(now);
  }
}

void Coordinator::gather(Clock::time_point now) {
  const auto count = static_cast<int>(members_.size());
  const bool own_here =
      std::any_of(members_.begin(), members_.end(), [](const auto& item) { return item.second.own; });
  if (own_here && count >= options_.max_machines) return start_attempt(now);
  if (own_here && count >= options_.min_machines) {
    if (!last_call_until_) last_call_until_ = now + options_.last_call;
    if (now >= *last_call_until_) return start_attempt(now);
    return;
  }
  last_call_until_.reset();
  if (now >= next_status_) report_missing(now);
  if (now - gathering_since_ < options_.connect_timeout) return;
  const std::string before = cause_ ? concat(cause_->text, "; ") : "";
  cause_ = Cause{
      .machine = -1,
      .text = concat(before, "gave up after ", seconds_text(options_.connect_timeout), ": ", missing_text()),
      .code = static_cast<int>(ExitCode::kLaunchError),
      .final = true};
  finish();
}

std::string Coordinator::missing_text() const {
  std::vector<std::string> here;
  std::set<int> present;
  for (const auto& [connection, member] : members_) {
    here.push_back(options_.fixed_ranks ? concat(member.machine, " (host ", member.host, ")")
                                        : concat("host ", member.host));
    present.insert(member.machine);
  }
  const std::string list = here.empty() ? "nobody" : join(here, ", ");
  if (!options_.fixed_ranks) {
    return concat("waiting for ", options_.min_machines - static_cast<int>(here.size()), " more of at least ",
                  options_.min_machines, " machines; here: ", list);
  }
  std::vector<std::string> missing;
  for (int machine = 0; machine < options_.max_machines; ++machine) {
    if (!present.contains(machine)) missing.push_back(std::to_string(machine));
  }
  return concat("waiting for machine_rank ", join(missing, ", "), " of ", options_.max_machines,
                " machines; here: ", list);
}

void Coordinator::report_missing(Clock::time_point now) {
  next_status_ = now + kStatusInterval;
  const auto waited = std::chrono::duration_cast<milliseconds>(now - gathering_since_);
  const auto left = std::max(milliseconds(0), options_.connect_timeout - waited);
  MachineMessage status{.type = MessageType::kStatus};
  status.text = concat(missing_text(), " (", std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                       " s left)");
  send_to_all(status);
}

void Coordinator::number_machines() {
  if (options_.fixed_ranks) return;
  // The store is served by rank 0, whose port the coordinator's own machine binds.
  int next = 1;
  for (auto& [connection, member] : members_) member.machine = member.own ? 0 : next++;
}

std::string Coordinator::master_address() const {
  // The name of this machine may mean a loopback address here; what others came in on is right for all.
  std::string own;
  for (const auto& [connection, member] : members_) {
    if (!member.own) return member.reached_at;
    own = member.reached_at;
  }
  return own;
}

void Coordinator::start_attempt(Clock::time_point now) {
  ++attempt_;
  number_machines();
  cause_.reset();
  MachineMessage start{.type = MessageType::kStart};
  try {
    start.port = options_.open_store(attempt_);
    start.master_port = options_.master_port;
  } catch (const Error& error) {
    cause_ = Cause{.machine = 0, .text = error.what(), .code = error.exit_code(), .final = true};
    return finish();
  }
  start.attempt = attempt_;
  start.machines = static_cast<int64_t>(members_.size());
  start.num_processes = start.machines * options_.local_processes;
  start.address = master_address();
  start.job = options_.job_id;
  for (auto& [connection, member] : members_) {
    member.served = member.active = true;
    member.ended = false;
    start.machine = member.machine;
    start.first_rank = int64_t{member.machine} * options_.local_processes;
    send(connection, start);
  }
  phase_ = Phase::kRunning;
}

void Coordinator::stop(Cause cause, Clock::time_point now) {
  MachineMessage message{.type = MessageType::kStop, .machine = cause.machine};
  message.text = cause.text;
  message.signal = cause.signal;
  cause_ = std::move(cause);
  phase_ = Phase::kStopping;
  phase_until_ = now + options_.stop_timeout;
  for (const auto& [connection, member] : members_) {
    if (member.active) send(connection, message);
  }
}

void Coordinator::finish_stop(Clock::time_point now) {
  for (auto& [connection, member] : members_) {
    member.active = false;
    member.ended = false;
  }
  if (cause_->final || restarts_ >= options_.max_restarts) return finish();
  ++restarts_;
  MachineMessage restart{.type = MessageType::kRestart, .machine = cause_->machine};
  restart.text = concat(cause_->text, "\nrestart ", restarts_, " of ", options_.max_restarts,
                        " of all machines in ", seconds_text(delay_));
  send_to_all(restart);
  phase_ = Phase::kPausing;
  phase_until_ = now + delay_;
  delay_ = std::min(2 * delay_, kMaxRestartDelay);
}

void Coordinator::finish() {
  phase_ = Phase::kFinished;
  MachineMessage end{.type = MessageType::kEnd};
  if (cause_) {
    end.machine = cause_->machine;
    end.text = cause_->text;
    end.code = cause_->code;
    end.signal = cause_->signal;
  }
  for (const auto& [connection, member] : members_) send(connection, end, true);
}

void Coordinator::abandon(const std::string& why) {
  if (finished()) return;
  cause_ = Cause{.machine = 0, .text = why, .code = kLostCode, .final = true};
  finish();
}

bool Coordinator::all_ended() const {
  return std::all_of(members_.begin(), members_.end(),
                     [](const auto& item) { return !item.second.active || item.second.ended; });
}

std::string Coordinator::name(const Member& member) const {
  return member.machine < 0 ? concat("host ", member.host)
                            : concat("machine ", member.machine, " (host ", member.host, ")");
}

Coordinator::Clock::time_point Coordinator::next_tick() const {
  Clock::time_point next = next_beat_;
  if (phase_ == Phase::kStopping || phase_ == Phase::kPausing) next = std::min(next, phase_until_);
  if (phase_ == Phase::kGathering) {
    next = std::min({next, next_status_, gathering_since_ + options_.connect_timeout});
    if (last_call_until_) next = std::min(next, *last_call_until_);
  }
  for (const auto& [connection, member] : members_)
    next = std::min(next, member.last_seen + options_.heartbeat_timeout);
  return next;
}

void Coordinator::send(Connection connection, MachineMessage message, bool close, bool linger) {
  outgoing_.push_back({connection, std::move(message), close, linger});
}

void Coordinator::send_to_all(const MachineMessage& message) {
  for (const auto& [connection, member] : members_) send(connection, message);
}

std::vector<Coordinator::Outgoing> Coordinator::take_outgoing() {
  return std::exchange(outgoing_, {});
}

}  // namespace accelerate::detail
