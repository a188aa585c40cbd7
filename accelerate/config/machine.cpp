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

// CUDA stops reading the list at the first entry that it does not know.
int count_visible(const std::string& list, int devices) {
  int count = 0;
  for (const std::string& part : split(list, ',')) {
    const std::string id = trim(part);
    const auto number = parse_int(id);
    const bool known =
        number ? *number >= 0 && *number < devices : id.starts_with("GPU-") || id.starts_with("MIG-");
    if (!known) break;
    ++count;
  }
  return std::min(count, devices);
}

}  // namespace

MachineFacts detect_machine(const EnvVars& variables) {
  MachineFacts facts;
  facts.cores = logical_cpus();
  facts.cuda_devices = count_device_nodes();
  // Not through get(): an empty list means "no device" to CUDA, and not "not given".
  const auto visible = variables.values().find("CUDA_VISIBLE_DEVICES");
  if (visible != variables.values().end()) {
    facts.cuda_devices = count_visible(visible->second, facts.cuda_devices);
  }
  return facts;
}

}  // namespace accelerate
