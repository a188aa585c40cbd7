#include "accelerate/launch/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/launch/rank_environment.h"
#include "accelerate/launch/report.h"

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;

// How long the rank that made another one lose its peers may take to show up as dead.
constexpr milliseconds kCulpritWait{700};
// From SIGKILL to giving up on a process that hangs in the kernel.
constexpr milliseconds kKillWait{2000};
// A process group without its leader gives no event when it empties; this is how often it is looked at, only
// while stopping and only if there is one.
constexpr milliseconds kGroupCheck{5};
// What a rank leaves running after a good end gets less time than ranks.
constexpr milliseconds kLeftoverGrace{1000};
constexpr size_t kMaxStarterBytes = 64 * 1024;  // of what a starter says itself
constexpr size_t kReadBytes = 64 * 1024;
constexpr int kMaxReadsAtEnd = 64;  // more than a pipe holds: a daemon that kept it open must not hold us

// Among ranks that ended in the same instant, a crash is likelier to be the cause than the abort of one that
// noticed.
int blame_order(const WaitStatus& status) {
  if (status.signal && *status.signal != SIGABRT && *status.signal != SIGPIPE) return 0;
  return 1;
}

bool lost_its_peers(const WaitStatus& status) {
  return status.exit_code == static_cast<int>(ExitCode::kCommError);
}

}  // namespace

Supervisor::Supervisor(const LaunchPlan& plan, Console& console, Guardian& guardian, SignalPipe* signals,
                       PeerMachines* peers)
    : plan_(plan),
      console_(console),
      guardian_(guardian),
      signals_(signals),
      peers_(peers),
      buffer_(kReadBytes) {
  console_.end_stop();
}

void Supervisor::spawn_one(SpawnOptions options) {
  const ChildOutput output = console_.captures() ? ChildOutput::kPipe : ChildOutput::kInherit;
  options.program = plan_.program;
  options.arguments = plan_.arguments;
  options.working_directory = plan_.working_directory;
  options.standard_output = output;
  options.standard_error = output;
  options.keep_ignored = {SIGHUP};
  // A terminal can't be shared: a rank is a background process group, which reading would stop.
  const bool stdin_usable = ::isatty(STDIN_FILENO) == 0 && ::fcntl(STDIN_FILENO, F_GETFD) != -1;
  options.inherit_stdin = options.inherit_stdin && stdin_usable;
  ranks_.push_back({.process = spawn(options), .status = std::nullopt});
  guardian_.watch(ranks_.back().process.pid());
}

void Supervisor::start(const JobFacts& job, int threads) {
  first_rank_ = job.first_rank;
  ranks_.reserve(static_cast<size_t>(plan_.num_processes));
  for (int rank = 0; rank < plan_.num_processes; ++rank) {
    SpawnOptions options;
    options.environment = rank_environment(plan_, job, rank, threads);
    options.inherit_stdin = job.first_rank + rank == 0;
    const bool serves_store = job.listen_fd && job.first_rank + rank == kStoreRank;
    if (serves_store) options.inherited_fds = {*job.listen_fd};
    const auto at = static_cast<size_t>(rank);
    if (at < plan_.rank_cpus.size()) options.cpus = plan_.rank_cpus[at];
    spawn_one(std::move(options));
  }
}

void Supervisor::start_starter(const std::string& job_id) {
  SpawnOptions options;
  options.environment = starter_environment(plan_, job_id);
  options.inherit_stdin = true;
  // Killed at once, it would leave its ranks behind.
  options.parent_death_signal = SIGTERM;
  for (const RankStream stream : {RankStream::kStdout, RankStream::kStderr}) {
    if (!plan_.starter->tags_output) break;
    tagged_.emplace_back([this, stream](std::optional<int> rank, std::string_view text) {
      const bool known = rank && *rank < plan_.num_processes;
      if (known) return console_.feed(*rank, stream, text);
      if (starter_text_.size() < kMaxStarterBytes) starter_text_ += text;
      console_.relay(stream, text);
    });
  }
  spawn_one(std::move(options));
}

void Supervisor::feed(int rank, RankStream stream, std::string_view bytes) {
  if (!plan_.starter) return console_.feed(rank, stream, bytes);
  if (tagged_.empty()) return console_.relay(stream, bytes);
  tagged_[static_cast<size_t>(stream)].feed(bytes);
}

void Supervisor::end_of_stream(int rank, RankStream stream) {
  if (!plan_.starter) return console_.end_of_stream(rank, stream);
  if (!tagged_.empty()) tagged_[static_cast<size_t>(stream)].finish();
  for (int one = 0; one < plan_.num_processes; ++one) console_.end_of_stream(one, stream);
}

std::string Supervisor::name(const std::vector<int>& ranks) const {
  return plan_.starter ? plan_.starter->name : name_ranks(ranks);
}

Supervisor::Outcome Supervisor::watch() {
  while (!all_gone() || waits_for_culprit()) {
    wait_for_events();
    if (signals_ != nullptr) {
      while (const auto number = signals_->next()) handle_signal(*number);
    }
    if (peers_ != nullptr) {
      while (const auto stop = peers_->next_stop()) stop_for_peer(*stop);
    }
    reap();
    run_timers();
    check_groups();
    if (all_reaped() && secondary_ && !waits_for_culprit()) blame(*secondary_);
    if (all_reaped() && !stopping_ && !waits_for_culprit() && !all_gone()) {
      const auto now = Clock::now();
      begin_stop({{now, SIGTERM}, {now + std::min(kLeftoverGrace, plan_.grace_period), SIGKILL}});
    }
    if (give_up_ && Clock::now() >= *give_up_) {
      outcome_.unkillable = still_running();
      break;
    }
  }
  outcome_.saved_first =
      outcome_.stopped_by_signal && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
        return rank.status && rank.status->exit_code == static_cast<int>(ExitCode::kPreempted);
      });
  return outcome_;
}

void Supervisor::wait_for_events() {
  polled_.clear();
  if (signals_ != nullptr) polled_.push_back({signals_->fd(), POLLIN, 0});
  if (peers_ != nullptr) polled_.push_back({peers_->fd(), POLLIN, 0});
  const size_t first_output = polled_.size();
  // poll() passes over negative descriptors, so the places stay fixed: per rank pidfd, stdout, stderr.
  const auto output_of = [this](UniqueFd& pipe, RankStream stream) {
    return pollfd{console_.accepts(stream) ? pipe.get() : -1, POLLIN, 0};
  };
  for (Rank& rank : ranks_) {
    polled_.push_back({rank.status ? -1 : rank.process.pidfd(), POLLIN, 0});
    polled_.push_back(output_of(rank.process.stdout_pipe(), RankStream::kStdout));
    polled_.push_back(output_of(rank.process.stderr_pipe(), RankStream::kStderr));
  }
  console_.add_poll_items(polled_);
  if (::poll(polled_.data(), polled_.size(), poll_timeout_ms()) <= 0) return;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const size_t at = first_output + 3 * i;
    if (polled_[at + 1].revents != 0) read_output(static_cast<int>(i), RankStream::kStdout);
    if (polled_[at + 2].revents != 0) read_output(static_cast<int>(i), RankStream::kStderr);
  }
}

int Supervisor::poll_timeout_ms() const {
  std::optional<Clock::time_point> next = console_.next_due();
  const auto consider = [&next](Clock::time_point when) {
    if (!next || when < *next) next = when;
  };
  if (secondary_ && !stopping_) consider(secondary_until_);
  if (!stop_steps_.empty()) consider(stop_steps_.front().when);
  if (give_up_) consider(*give_up_);
  const bool orphans = std::any_of(ranks_.begin(), ranks_.end(),
                                   [](const Rank& rank) { return rank.status && !rank.group_gone; });
  if (stopping_ && orphans) consider(Clock::now() + kGroupCheck);
  // Without pidfd (before Linux 5.3) ends are only found by looking.
  const bool blind = std::any_of(ranks_.begin(), ranks_.end(),
                                 [](const Rank& rank) { return !rank.status && rank.process.pidfd() < 0; });
  if (blind) consider(Clock::now() + milliseconds(20));
  if (!next) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

void Supervisor::read_output(int rank, RankStream stream) {
  ChildProcess& process = ranks_[static_cast<size_t>(rank)].process;
  UniqueFd& pipe = stream == RankStream::kStdout ? process.stdout_pipe() : process.stderr_pipe();
  if (!pipe) return;
  const ssize_t got = ::read(pipe.get(), buffer_.data(), buffer_.size());
  if (got > 0) {
    feed(rank, stream, {buffer_.data(), static_cast<size_t>(got)});
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    end_of_stream(rank, stream);
    pipe.reset();
  }
}

void Supervisor::finish_output(int rank) {
  ChildProcess& process = ranks_[static_cast<size_t>(rank)].process;
  for (const RankStream stream : {RankStream::kStdout, RankStream::kStderr}) {
    UniqueFd& pipe = stream == RankStream::kStdout ? process.stdout_pipe() : process.stderr_pipe();
    for (int reads = 0; pipe && reads < kMaxReadsAtEnd; ++reads) {
      pollfd item{pipe.get(), POLLIN, 0};
      if (::poll(&item, 1, 0) <= 0) break;
      read_output(rank, stream);
    }
    if (pipe) end_of_stream(rank, stream);
  }
}

bool Supervisor::reap() {
  std::vector<int> ended;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (rank.status) continue;
    rank.status = rank.process.poll();
    if (rank.status) ended.push_back(static_cast<int>(i));
  }
  for (const int rank : ended) finish_output(rank);
  if (!ended.empty() && !stopping_) judge_ends(ended);
  return !ended.empty();
}

void Supervisor::judge_ends(const std::vector<int>& ended) {
  std::optional<int> culprit;
  for (const int rank : ended) {
    const WaitStatus& status = *ranks_[static_cast<size_t>(rank)].status;
    if (status.success()) continue;
    if (lost_its_peers(status)) {
      if (secondary_) continue;
      secondary_ = rank;
      secondary_until_ = Clock::now() + kCulpritWait;
    } else if (!culprit || blame_order(status) < blame_order(*ranks_[static_cast<size_t>(*culprit)].status)) {
      culprit = rank;
    }
  }
  if (culprit) blame(*culprit);
}

void Supervisor::blame(int rank) {
  secondary_.reset();
  if (outcome_.failure || outcome_.stopped_by_signal) return;
  const Rank& failed = ranks_[static_cast<size_t>(rank)];
  outcome_.failure = RankFailure{
      .rank = first_rank_ + rank, .local_rank = rank, .pid = failed.process.pid(), .status = *failed.status};
  if (peers_ != nullptr) peers_->tell_failure(*outcome_.failure);
  outcome_.stopped = still_running();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].status && ranks_[i].status->success())
      outcome_.left_before.push_back(first_rank_ + static_cast<int>(i));
  }
  if (plan_.starter) outcome_.named_by_starter = rank_named_by_mpirun(starter_text_);
  begin_stop(stop_steps(SIGTERM));
}

void Supervisor::run_timers() {
  const auto now = Clock::now();
  console_.run_output(now);
  if (secondary_ && !stopping_ && now >= secondary_until_) blame(*secondary_);
  while (!stop_steps_.empty() && stop_steps_.front().when <= Clock::now()) {
    const int number = stop_steps_.front().signal;
    stop_steps_.pop_front();
    if (number == SIGKILL) {
      stop_steps_.clear();
      give_up_ = Clock::now() + kKillWait;
    }
    const std::vector<int> late = number == SIGKILL ? still_running() : std::vector<int>();
    send_to_all(number);
    if (!late.empty()) console_.inform(describe_late(name(late), grace()));
  }
}

void Supervisor::begin_stop(std::deque<StopStep> steps) {
  stopping_ = true;
  console_.begin_stop();
  stop_steps_ = std::move(steps);
  run_timers();
}

void Supervisor::send_to_all(int signal_number) {
  for (Rank& rank : ranks_) {
    if (rank.group_gone) continue;
    rank.process.signal_group(signal_number);
    // A stopped process acts on a signal only once it goes on.
    if (signal_number != SIGKILL) rank.process.signal_group(SIGCONT);
  }
}

void Supervisor::handle_signal(int number) {
  // A job that has failed is being stopped already and keeps its own exit code.
  const bool again =
      outcome_.stopped_by_signal.has_value() || outcome_.failure.has_value() || outcome_.stopped_by_peer;
  if (peers_ != nullptr) peers_->tell_signal(number);
  if (!again) return stop_by_signal(number);
  outcome_.interrupted = true;
  if (number != SIGINT && number != SIGQUIT) return;
  stop_steps_.clear();
  give_up_ = Clock::now() + kKillWait;
  send_to_all(SIGKILL);
}

void Supervisor::stop_by_signal(int number) {
  outcome_.stopped_by_signal = number;
  secondary_.reset();
  const bool already_stopping = stopping_;
  const std::vector<int> running = still_running();
  begin_stop(stop_steps(number));
  if (!already_stopping) console_.inform(describe_stop(number, name(running), grace()));
}

void Supervisor::stop_for_peer(const PeerStop& stop) {
  if (outcome_.stopped_by_signal || outcome_.failure || outcome_.stopped_by_peer) return;
  outcome_.stopped_by_peer = true;
  secondary_.reset();
  outcome_.stopped = still_running();
  begin_stop(stop_steps(stop.signal != 0 ? stop.signal : SIGTERM));
  if (stop.signal != 0 && !outcome_.stopped.empty())
    console_.inform(describe_peer_stop(stop, outcome_.stopped, plan_.grace_period));
}

milliseconds Supervisor::grace() const {
  return plan_.grace_period + (plan_.starter ? plan_.starter->stop_time : milliseconds(0));
}

std::deque<Supervisor::StopStep> Supervisor::stop_steps(int signal_number) const {
  const auto now = Clock::now();
  const auto end = now + grace();
  // A second signal makes mpirun leave in a hurry, without its ranks.
  if (signal_number == SIGTERM || plan_.starter) return {{now, signal_number}, {end, SIGKILL}};
  return {{now, signal_number}, {now + plan_.grace_period / 2, SIGTERM}, {end, SIGKILL}};
}

// Where all ranks of this machine lost their peers, the one that is to blame is on another.
bool Supervisor::waits_for_culprit() const {
  return peers_ != nullptr && secondary_ && !stopping_;
}

void Supervisor::check_groups() {
  for (Rank& rank : ranks_) {
    if (!rank.status || rank.group_gone || rank.process.group_exists()) continue;
    rank.group_gone = true;
    guardian_.forget(rank.process.pid());
  }
}

bool Supervisor::all_gone() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.group_gone; });
}

bool Supervisor::all_reaped() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status.has_value(); });
}

std::vector<int> Supervisor::still_running() const {
  std::vector<int> out;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].status) out.push_back(first_rank_ + static_cast<int>(i));
  }
  return out;
}

}  // namespace accelerate::detail
