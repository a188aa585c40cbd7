#include "accelerate/config/machine.h"

#include <algorithm>
#include <filesystem>

#include "accelerate/core/machine.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// The driver makes one node a device, and a container holds the nodes that were given to it.
int count_device_nodes() {
  int count = 0;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator("/dev", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("nvidia") && parse_int(name.substr(6))) ++count;
  }
  return count;
}

bool is_unique_name(std::string_view id) {
  return id.starts_with("GPU-") || id.starts_with("MIG-");
}

// Numbers alike, or one name the beginning of the other.
bool same_device(std::string_view a, std::string_view b) {
  const auto number = parse_int(a);
  if (number) return number == parse_int(b);
  return is_unique_name(a) && is_unique_name(b) && (a.starts_with(b) || b.starts_with(a));
}

}  // namespace

MachineFacts detect_machine(const EnvVars& variables) {
  MachineFacts facts;
  facts.cores = logical_cpus();
  facts.cuda_devices = count_device_nodes();
  // Not through get(): an empty list means "no device" to CUDA, and not "not given".
  const auto visible = variables.values().find("CUDA_VISIBLE_DEVICES");
  if (visible != variables.values().end()) {
    facts.visible_ids = visible_ids(visible->second, facts.cuda_devices);
    facts.cuda_devices = static_cast<int>(facts.visible_ids.size());
  }
  return facts;
}

// CUDA stops reading the list at the first entry that it does not know.
std::vector<std::string> visible_ids(std::string_view list, int devices) {
  std::vector<std::string> out;
  for (const std::string& part : split(list, ',')) {
    const std::string id = trim(part);
    const auto number = parse_int(id);
    const bool known = number ? *number >= 0 && *number < devices : is_unique_name(id);
    if (!known || static_cast<int>(out.size()) == devices) break;
    out.push_back(id);
  }
  return out;
}

std::vector<std::string> missing_devices(const MachineFacts& machine, std::span<const std::string> ids) {
  std::vector<std::string> out;
  for (const std::string& id : ids) {
    const auto number = parse_int(id);
    const auto& visible = machine.visible_ids;
    const bool there = machine.cuda_devices > 0 && visible.empty()
                           ? !number || *number < machine.cuda_devices
                           : std::any_of(visible.begin(), visible.end(),
                                         [&](const std::string& other) { return same_device(id, other); });
    if (!there) out.push_back(id);
  }
  return out;
}

}  // namespace accelerate
