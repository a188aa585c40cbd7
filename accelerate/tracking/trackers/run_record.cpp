#include "accelerate/tracking/trackers/run_record.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"

namespace accelerate {

RunRecord::RunRecord(const TrackerContext& context, const std::vector<ExplainedValue>& settings)
    : context_(context), settings_(settings) {
  write();
}

void RunRecord::set_configuration(const TrackedValues& values) {
  configuration_ = without_repeats(values);
  write();
}

void RunRecord::set_end(RunStatus status) {
  status_ = status;
  ended_ = wall_time_seconds();
  write();
}

void RunRecord::write() const {
  nlohmann::ordered_json out;
  out["format"] = 1;
  out["project"] = context_.project;
  out["run"] = context_.run_name;
  out["accelerate"] = kVersion;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  out["host"] = host;
  out["world_size"] = context_.world_size;
  out["started"] = context_.started;
  out["status"] = !status_ ? "running" : *status_ == RunStatus::kFinished ? "finished" : "failed";
  if (status_) out["ended"] = ended_;
  out["configuration"] = nlohmann::ordered_json::array();
  for (const auto& [name, value] : configuration_) {
    out["configuration"].push_back({{"name", name}, {"value", value.text()}});
  }
  out["settings"] = nlohmann::ordered_json::array();
  for (const ExplainedValue& setting : settings_) {
    out["settings"].push_back({{"name", setting.name}, {"value", setting.value}, {"origin", setting.origin}});
  }
  write_file_atomically(system_files(), concat(context_.directory, "/run-", context_.run_name, ".json"),
                        out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace accelerate
