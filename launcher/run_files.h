#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/config/load.h"

namespace accelerate::cli {

/// One value of a metric. What is not finite is NaN or an infinity.
struct MetricPoint {
  double step = 0;
  double time = 0;  ///< seconds since 1970
  double value = 0;
};

struct Metric {
  std::string name = {};
  std::vector<MetricPoint> points = {};  ///< as logged
};

/// What a run left behind.
struct TrackedRun {
  std::string name = {};    ///< differs between the runs of a report
  std::string source = {};  ///< the file or folder that its metrics come from
  std::string status = {};  ///< "finished", "failed", "running", or empty where nothing says
  double started = 0;       ///< 0: nothing says
  double ended = 0;
  int64_t world_size = 0;
  std::string host = {};
  std::string version = {};  ///< of accelerate
  std::vector<std::pair<std::string, std::string>> configuration = {};
  std::vector<ExplainedValue> settings = {};
  std::vector<Metric> metrics = {};        ///< in order of their first appearance
  std::vector<std::string> problems = {};  ///< what could not be read

  const Metric* find(const std::string& metric) const;
};

/// All runs below a folder, in order of their start: `run-*.json` with `metrics-*.jsonl`, `metrics-*.csv` or
/// event files beside them, and any of the latter without a record.
/// @throws ConfigError when the folder is not there, or holds no run.
std::vector<TrackedRun> find_runs(const std::string& directory);

}  // namespace accelerate::cli
