#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// What the launchers of one job tell one another. Each launcher is an agent; the coordinator lives in the
/// launcher of one machine.
enum class MessageType {
  // Agent to coordinator.
  kHello,   ///< version, token, machine, host, machines, local_processes, num_processes
  kFailed,  ///< attempt, text, code: a rank failed, or ranks could not be started
  kSignal,  ///< signal: the user or the batch system wants this machine's launcher to end
  kEnded,   ///< attempt: no process of the attempt is left here
  // Coordinator to agent.
  kWelcome,  ///< machine and host of the coordinator, heartbeat_ms
  kRefused,  ///< text
  kStatus,   ///< text for the user
  kStart,    ///< attempt, machine, machines, first_rank, num_processes, address, port (the store's),
             ///< master_port, job
  kStop,     ///< text, signal (0: a failure), machine that caused it
  kRestart,  ///< text for the user, machine that caused it; the last line of the text is about the restart
             ///< alone
  kEnd,      ///< code, text (empty: success), signal, machine that caused it
  // Both ways.
  kBeat,
};

/// Version of the protocol; launchers of different versions refuse one another.
inline constexpr int kProtocolVersion = 2;

/// One message; the members that its type does not list stay at their defaults.
struct MachineMessage {
  MessageType type = MessageType::kBeat;
  int64_t version = 0;
  int64_t machine = -1;
  int64_t machines = 0;
  int64_t local_processes = 0;
  int64_t num_processes = 0;  ///< of the whole job
  int64_t attempt = 0;
  int64_t first_rank = 0;
  int64_t port = 0;
  int64_t master_port = 0;
  int64_t code = 0;
  int64_t signal = 0;
  int64_t heartbeat_ms = 0;
  std::string token = {};
  std::string nonce = {};  ///< tells the coordinator its own agent
  std::string host = {};
  std::string address = {};
  std::string job = {};
  std::string text = {};
};

/// One line of JSON, without its end.
std::string encode(const MachineMessage& message);

/// Nothing if the line is no message of ours. Texts are cut to a few kilobytes, and control characters in
/// them become '?', since they may reach a terminal.
std::optional<MachineMessage> decode(std::string_view line);

}  // namespace accelerate::detail
