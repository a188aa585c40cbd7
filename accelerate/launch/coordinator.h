#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/launch/machine_message.h"

namespace accelerate::detail {

struct CoordinatorOptions {
  int min_machines = 1;
  int max_machines = 1;
  /// True: each machine brings its number. False: numbers are given in order of arrival.
  bool fixed_ranks = true;
  int local_processes = 1;
  std::string token;
  std::string nonce;  ///< the hello of the coordinator's own machine carries it
  std::string host;
  std::string job_id;
  int max_restarts = 0;
  std::chrono::milliseconds restart_delay{200};
  std::chrono::milliseconds heartbeat_timeout{5000};
  std::chrono::milliseconds connect_timeout{300000};
  /// How long a job that could start with fewer machines waits for more.
  std::chrono::milliseconds last_call{3000};
  /// From asking machines to stop their ranks to going on without an answer.
  std::chrono::milliseconds stop_timeout{15000};
  int master_port = 0;  ///< left to the ranks' programs on machine 0
  /// Makes the listening socket of the store of an attempt and returns its port.
  std::function<int(int attempt)> open_store;
};

/// Decides when the machines of a job start, stop and start again. Knows no sockets and no clock: the caller
/// feeds it what came and what time it is, and sends what take_outgoing() says. Not thread-safe.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using Connection = int;

  struct Outgoing {
    Connection connection;
    std::optional<MachineMessage> message;
    bool close = false;  ///< after the message
    bool linger = true;  ///< give the peer time to read it
  };

  Coordinator(CoordinatorOptions options, Clock::time_point now);

  /// `reached_at`: the address of ours that this connection came in on.
  void received(Connection connection, const MachineMessage& message, const std::string& reached_at,
                Clock::time_point now);
  /// A connection ended. `reason` reads after "connection lost: ".
  void gone(Connection connection, const std::string& reason, Clock::time_point now);
  /// Everything that only time brings about. To be called at next_tick() or earlier.
  void tick(Clock::time_point now);
  Clock::time_point next_tick() const;
  std::vector<Outgoing> take_outgoing();

  /// Ends the job everywhere, since the coordinator itself has to go.
  void abandon(const std::string& why);
  bool finished() const { return phase_ == Phase::kFinished; }
  bool is_member(Connection connection) const { return members_.contains(connection); }

 private:
  enum class Phase { kGathering, kRunning, kStopping, kPausing, kFinished };
  struct Member {
    int machine = -1;
    std::string host;
    std::string reached_at;
    bool own = false;
    bool served = false;  ///< has had ranks in any attempt
    bool active = false;  ///< has ranks in the current attempt
    bool ended = false;   ///< they are all gone
    Clock::time_point last_seen;
  };
  struct Cause {
    int machine = -1;
    std::string text;
    int code = 0;
    int signal = 0;
    bool final = false;
  };

  void greet(Connection connection, const MachineMessage& hello, const std::string& reached_at,
             Clock::time_point now);
  std::string refusal(const MachineMessage& hello, bool own) const;
  void handle_signal(const Member& from, int number, Clock::time_point now);
  void lose(Connection connection, const std::string& how, Clock::time_point now);
  void drop_silent(Clock::time_point now);
  void gather(Clock::time_point now);
  void report_missing(Clock::time_point now);
  void tell_refusal(const MachineMessage& hello, const std::string& why);
  void number_machines();
  void start_attempt(Clock::time_point now);
  void stop(Cause cause, Clock::time_point now);
  void finish_stop(Clock::time_point now);
  void finish();
  void advance(Clock::time_point now);
  bool all_ended() const;
  std::string name(const Member& member) const;
  std::string missing_text() const;
  std::string master_address() const;
  void send(Connection connection, MachineMessage message, bool close = false, bool linger = true);
  void send_to_all(const MachineMessage& message);

  CoordinatorOptions options_;
  Phase phase_ = Phase::kGathering;
  std::map<Connection, Member> members_;  ///< in order of arrival
  std::vector<Outgoing> outgoing_;
  std::optional<Cause> cause_;
  std::string last_refusal_;
  int attempt_ = -1;  ///< the current or last one
  int restarts_ = 0;
  std::chrono::milliseconds delay_;
  Clock::time_point gathering_since_;
  Clock::time_point next_status_;
  Clock::time_point next_beat_;
  std::optional<Clock::time_point> last_call_until_;
  Clock::time_point phase_until_;  ///< of stopping and pausing
};

}  // namespace accelerate::detail
