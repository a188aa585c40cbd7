#include "accelerate/launch/machine_message.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace accelerate::detail {
namespace {

using nlohmann::json;

constexpr size_t kMaxTextBytes = 4096;

constexpr std::array<std::pair<MessageType, const char*>, 12> kTypes = {{
    {MessageType::kHello, "hello"},
    {MessageType::kFailed, "failed"},
    {MessageType::kSignal, "signal"},
    {MessageType::kEnded, "ended"},
    {MessageType::kWelcome, "welcome"},
    {MessageType::kRefused, "refused"},
    {MessageType::kStatus, "status"},
    {MessageType::kStart, "start"},
    {MessageType::kStop, "stop"},
    {MessageType::kRestart, "restart"},
    {MessageType::kEnd, "end"},
    {MessageType::kBeat, "beat"},
}};

constexpr std::array<std::pair<const char*, int64_t MachineMessage::*>, 12> kNumbers = {{
    {"version", &MachineMessage::version},
    {"machine", &MachineMessage::machine},
    {"machines", &MachineMessage::machines},
    {"local_processes", &MachineMessage::local_processes},
    {"num_processes", &MachineMessage::num_processes},
    {"attempt", &MachineMessage::attempt},
    {"first_rank", &MachineMessage::first_rank},
    {"port", &MachineMessage::port},
    {"master_port", &MachineMessage::master_port},
    {"code", &MachineMessage::code},
    {"number", &MachineMessage::signal},
    {"heartbeat_ms", &MachineMessage::heartbeat_ms},
}};

constexpr std::array<std::pair<const char*, std::string MachineMessage::*>, 6> kTexts = {{
    {"token", &MachineMessage::token},
    {"nonce", &MachineMessage::nonce},
    {"host", &MachineMessage::host},
    {"address", &MachineMessage::address},
    {"job", &MachineMessage::job},
    {"text", &MachineMessage::text},
}};

// Line ends stay: a message for the user may have several lines.
std::string harmless(std::string text) {
  text.resize(std::min(text.size(), kMaxTextBytes));
  for (char& c : text) {
    const auto code = static_cast<unsigned char>(c);
    if ((code < 0x20 && c != '\n') || code == 0x7f) c = '?';
  }
  return text;
}

bool fill(const json& source, MachineMessage& out) {
  for (const auto& [name, member] : kNumbers) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    if (!found->is_number_integer()) return false;
    const int64_t value = found->get<int64_t>();
    if (value < -1 || value > std::numeric_limits<int>::max()) return false;
    out.*member = value;
  }
  for (const auto& [name, member] : kTexts) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    if (!found->is_string()) return false;
    out.*member = harmless(found->get<std::string>());
  }
  return true;
}

}  // namespace

std::string encode(const MachineMessage& message) {
  const MachineMessage defaults;
  json out = json::object();
  for (const auto& [type, name] : kTypes) {
    if (type == message.type) out["type"] = name;
  }
  for (const auto& [name, member] : kNumbers) {
    if (message.*member != defaults.*member) out[name] = message.*member;
  }
  for (const auto& [name, member] : kTexts) {
    if (!(message.*member).empty()) out[name] = message.*member;
  }
  return out.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::optional<MachineMessage> decode(std::string_view line) {
  const json source = json::parse(line, nullptr, false);
  if (!source.is_object()) return std::nullopt;
  const auto type = source.find("type");
  if (type == source.end() || !type->is_string()) return std::nullopt;
  for (const auto& [known, name] : kTypes) {
    if (type->get_ref<const std::string&>() != name) continue;
    MachineMessage out{.type = known};
    if (!fill(source, out)) return std::nullopt;
    return out;
  }
  return std::nullopt;
}

}  // namespace accelerate::detail
