#include "accelerate/comm/watchdog.h"

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "accelerate/comm/peer_report.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;
using Clock = OperationLog::Clock;

constexpr milliseconds kPatience(300);        // for the reports of ranks that fail at the same time
constexpr milliseconds kStorePatience(2000);  // for a store that does not answer
constexpr int kLate = 5;  // intervals without a sign of life, and a moment for a busy machine
constexpr const char* kStoreGone = "rank 0, which holds the job's store, is gone or stopped";

std::string watch_key(int rank) {
  return concat("accelerate/watch/", rank);
}

std::string seconds_text(Clock::duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 10 ? "%.1f s" : "%.0f s", seconds);
  return text;
}

int64_t number(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// What a rank writes: lines beat, collectives begun, backward passes, milliseconds, current, last.
std::string encode(int64_t beat, const OperationLog::State& state) {
  const int64_t age = std::chrono::duration_cast<milliseconds>(state.since).count();
  return concat(beat, "\n", state.begun, "\n", state.backward_passes, "\n", age, "\n", state.current, "\n",
                state.last);
}

// What is known of another rank.
struct Peer {
  std::string beat;  // as it last was
  Clock::time_point beat_seen = Clock::now();
  bool beats = false;  // the beat has been seen to change
  int64_t begun = 0;
  int64_t backward_passes = 0;
  milliseconds age{};
  std::string current;
  std::string last;

  void read(const std::string& text) {
    std::vector<std::string> lines = split(text, '\n');
    lines.resize(6);
    if (lines[0] != beat) {
      beats = !beat.empty();
      beat = lines[0];
      beat_seen = Clock::now();
    }
    begun = number(lines[1]);
    backward_passes = number(lines[2]);
    age = milliseconds(number(lines[3]));
    current = lines[4];
    last = lines[5];
  }
};

}  // namespace

struct Watchdog::Shared {
  using Tell = Watchdog::Tell;

  Shared(Store store_, std::shared_ptr<OperationLog> log_, WatchdogOptions options_, Tell tell_)
      : store(std::move(store_)),
        log(std::move(log_)),
        options(std::move(options_)),
        tell(std::move(tell_)),
        peers(static_cast<size_t>(options.size)) {}

  Store store;
  std::shared_ptr<OperationLog> log;
  WatchdogOptions options;
  Tell tell;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  std::optional<std::string> failed_in;  // asked
  bool thorough = false;                 // and to wait for another sign of life of each rank
  std::optional<std::string> answer;
  std::thread thread;

  // The thread's own.
  int64_t beat = 0;
  std::vector<Peer> peers;  // as they were last looked at
  int64_t watched_id = 0;   // the operation that next_notice is about
  Clock::duration next_notice{};
  bool store_gone = false;

  void look();
  void read_peers();
  // Threads of a busy machine may come late.
  bool silent_for_long(const Peer& peer) const {
    return Clock::now() - peer.beat_seen > kLate * options.interval + milliseconds(500);
  }
  std::string describe(int peer, const OperationLog::State& mine) const;
  std::string fail(const std::string& operation, bool thorough);
  std::string ask(const std::string& operation, bool thorough);
};

// All groups of the process, for when it is about to end.
class Watchdog::Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry;  // never destroyed: a process may end while others' threads run
    return *registry;
  }
  void add(Shared* shared) {
    const std::lock_guard lock(mutex_);
    if (groups_.empty() && previous_ == nullptr) previous_ = std::set_terminate(&on_terminate);
    groups_.insert(shared);
  }
  void remove(Shared* shared) {
    const std::lock_guard lock(mutex_);
    groups_.erase(shared);
  }

 private:
  static void on_terminate() {
    static std::atomic<bool> told = false;
    if (!told.exchange(true)) {
      try {
        if (const auto error = std::current_exception()) std::rethrow_exception(error);
      } catch (const std::exception& error) {
        const std::string text = error.what();
        if (text.find("doesn't match expected size") != std::string::npos) instance().tell_mismatch();
      } catch (...) {
      }
    }
    instance().previous_();
  }

  void tell_mismatch() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    for (Shared* group : groups_) {
      const OperationLog::State state = group->log->state();
      if (state.current_id == 0) continue;
      const std::string peers = group->ask(state.current, /*thorough=*/true);
      group->tell(
          LogLevel::kError,
          concat("data of another size than expected came in ", state.current, " on ",
                 group->options.backend_name, ": the ranks run different collectives, or their shapes ",
                 "or dtypes differ: ", peers,
                 ". Gloo ends the process. To be told by an error, run with ACCELERATE_DEBUG_MODE=1 "
                 "(accel launch --debug)."));
    }
  }

  std::mutex mutex_;
  std::set<Shared*> groups_;
  std::terminate_handler previous_ = nullptr;
};

void Watchdog::Shared::read_peers() {
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank || !store.has(watch_key(peer))) continue;
    if (const auto text = store.get(watch_key(peer), kPatience)) peers[static_cast<size_t>(peer)].read(*text);
  }
}

// Writes this rank's state, and looks at the others' where this one waits.
void Watchdog::Shared::look() {
  const OperationLog::State state = log->state();
  store.set(watch_key(options.rank), encode(++beat, state));
  if (state.current_id == 0 || state.since < 2 * options.interval) return;
  if (watched_id != state.current_id) {
    watched_id = state.current_id;
    next_notice = options.notice;
  }
  read_peers();
  if (options.notice <= milliseconds(0) || state.since < next_notice) return;
  next_notice = 2 * state.since;
  std::vector<std::string> parts;
  int inside = 0;
  for (int peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    if (peers[static_cast<size_t>(peer)].current == state.current) ++inside;
    if (std::string part = describe(peer, state); !part.empty()) parts.push_back(std::move(part));
  }
  if (inside == options.size - 1) {
    parts = {"all other ranks are in it too: it is slow, or the connection between machines is"};
  }
  const std::lock_guard lock(mutex);
  if (stop) return;  // whoever prints may be gone
  tell(LogLevel::kWarning, concat("still in ", state.current, " after ", seconds_text(state.since), " on ",
                                  options.backend_name, ": ", join(parts, "; ")));
}

std::string Watchdog::Shared::describe(int peer, const OperationLog::State& mine) const {
  const Peer& known = peers[static_cast<size_t>(peer)];
  const std::string who = concat("rank ", peer);
  const auto after =
      concat("after ", known.backward_passes, " backward passes and ", known.begun, " collectives in all");
  if (silent_for_long(known)) {
    return concat(who, " gives no sign of life (killed, stopped, or its machine is gone)",
                  known.last.empty() ? "" : concat("; the last that it did was ", known.last, ", ", after));
  }
  if (known.beat.empty()) return {};
  if (known.current == mine.current) return concat(who, " is in it too");
  if (!known.current.empty()) {
    return concat(who, " is in ", known.current, " instead, for ", seconds_text(known.age),
                  known.last.empty() ? "" : concat(", after ", known.last), ", ", after);
  }
  return concat(who, " has not come: it is in no collective since ", seconds_text(known.age),
                known.last.empty() ? "" : concat(", the last was ", known.last), ", ", after);
}

std::string Watchdog::Shared::fail(const std::string& operation, bool wait_for_beats) {
  if (store_gone) return kStoreGone;
  OperationLog::State state = log->state();
  if (state.current.empty()) state.current = state.last;  // an engine's, which ended with the error
  try {
    read_peers();
    if (wait_for_beats) {
      std::this_thread::sleep_for(options.interval + kPatience);
      read_peers();
    }
  } catch (const std::exception&) {
    return kStoreGone;
  }
  return detail::report_failure(store, options.rank, options.size, operation, kPatience, [&](int peer) {
    const Peer& known = peers[static_cast<size_t>(peer)];
    // Until its beat has been seen to change, a note may be a dead rank's.
    return known.beats || silent_for_long(known) ? describe(peer, state) : std::string();
  });
}

void Watchdog::run(const std::shared_ptr<Shared>& shared) {
  const auto guarded = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception&) {
      shared->store_gone = true;
    }
  };
  guarded([&] { shared->look(); });  // so that others know of this rank from the start
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait_for(lock, shared->options.interval,
                             [&] { return shared->stop || shared->failed_in.has_value(); });
    if (shared->failed_in) {
      const std::string operation = *std::exchange(shared->failed_in, std::nullopt);
      const bool thorough = shared->thorough;
      lock.unlock();
      std::string answer = shared->fail(operation, thorough);
      lock.lock();
      shared->answer = std::move(answer);
      shared->changed.notify_all();
      continue;
    }
    const bool stop = shared->stop;
    lock.unlock();
    guarded([&] {
      if (stop) {
        const OperationLog::State state = shared->log->state();
        report_left(shared->store, shared->options.rank, state.backward_passes, state.begun);
      } else if (!shared->store_gone) {
        shared->look();
      }
    });
    lock.lock();
    if (stop) break;
  }
  shared->ended = true;
  shared->changed.notify_all();
}

Watchdog::Watchdog(Store store, std::shared_ptr<OperationLog> log, const WatchdogOptions& options, Tell tell)
    : shared_(std::make_shared<Shared>(std::move(store), std::move(log), options, std::move(tell))) {
  shared_->thread = std::thread([shared = shared_] { run(shared); });
  Registry::instance().add(shared_.get());
}

Watchdog::~Watchdog() {
  Registry::instance().remove(shared_.get());
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kStorePatience, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    shared_->thread.join();
  } else {
    shared_->thread.detach();  // in a store that does not answer; what it touches lives as long as it does
  }
}

std::string Watchdog::Shared::ask(const std::string& operation, bool wait_for_beats) {
  std::unique_lock lock(mutex);
  answer.reset();
  thorough = wait_for_beats;
  failed_in = operation;
  changed.notify_all();
  const auto planned = 2 * kPatience + (wait_for_beats ? options.interval : milliseconds(0));
  if (changed.wait_for(lock, planned + kStorePatience, [&] { return answer.has_value(); })) return *answer;
  return options.rank == 0 ? "the job's store does not answer" : kStoreGone;
}

std::string Watchdog::report_failure(const std::string& operation) noexcept {
  try {
    return shared_->ask(operation, /*thorough=*/false);
  } catch (const std::exception&) {
    return kStoreGone;
  }
}

}  // namespace accelerate::detail
