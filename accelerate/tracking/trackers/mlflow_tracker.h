#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

struct MlflowOptions {
  /// "http://host:5000". Default: the variable MLFLOW_TRACKING_URI.
  std::string tracking_uri = {};
  /// Default: MLFLOW_EXPERIMENT_NAME, else the project's name.
  std::string experiment_name = {};
  /// Default: a name that differs between the runs.
  std::string run_name = {};
  /// A run that exists already, to go on with. Default: MLFLOW_RUN_ID, else a new run.
  std::string run_id = {};
  /// Values are sent this often.
  std::chrono::milliseconds send_interval = std::chrono::seconds(1);
  /// Limits of one request: of reaching the server, and in all.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds request_timeout = std::chrono::seconds(10);
  /// The longest that finish() waits for what is left.
  std::chrono::milliseconds finish_timeout = std::chrono::seconds(30);
  /// Values beyond this many that wait for the server are dropped and counted.
  size_t max_waiting = 100'000;
};

/// A run on an MLflow server, by its REST API, for which libcurl must be there. A thread of its own sends
/// what was logged: a server that is slow or down never holds up a step. What can't be sent is kept up to a
/// limit and tried again until finish(), which throws when something was lost. Numbers become metrics, the
/// configuration becomes params, and texts that are logged become tags. Names and passwords come from
/// MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; MLFLOW_TAGS is a JSON
/// object of tags, and MLFLOW_NESTED_RUN is not supported. Options (init_kwargs): `tracking_uri`,
/// `experiment_name`, `run_name`, `run_id`, `finish_timeout_secs`.
class MlflowTracker final : public Tracker {
 public:
  explicit MlflowTracker(MlflowOptions options = {});
  /// Ends the thread without waiting for the server.
  ~MlflowTracker() override;

  std::string name() const override { return "mlflow"; }
  /// @throws ConfigError where there is no libcurl, no tracking URI, or none that begins with http.
  void start(const TrackerContext& context) override;
  void store_init_configuration(const TrackedValues& values) override;
  void log(const TrackedValues& values, std::optional<int64_t> step) override;
  void finish(RunStatus status) override;

 private:
  class Sender;
  MlflowOptions options_;
  std::unique_ptr<Sender> sender_;
  int64_t next_step_ = 0;
};

}  // namespace accelerate
