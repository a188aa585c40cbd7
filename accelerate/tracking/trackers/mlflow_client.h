#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate {

/// Where an MLflow server is and who asks.
struct MlflowServer {
  std::string uri;         ///< "http://127.0.0.1:5000"
  std::string token = {};  ///< bearer token, or empty
  std::string user = {};   ///< "name:password", or empty
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds timeout = std::chrono::seconds(10);  ///< of one request
};

/// A request that went wrong.
struct MlflowFailure {
  std::string reason;       ///< "connection refused", "HTTP 404 RESOURCE_DOES_NOT_EXIST: ..."
  bool for_good = false;    ///< the server has refused it; asking again is no use
  bool by_content = false;  ///< refused for what was sent: less of it, or something else, may go
};

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t timestamp_ms = 0;
  int64_t step = 0;
};

using MlflowPairs = std::vector<std::pair<std::string, std::string>>;

/// MLflow's REST API 2.0 (mlflow.org/docs/latest/rest-api.html), one method a call. Every method waits for
/// the server, at most for its timeouts; what goes wrong is thrown as MlflowFailure. One thread at a time.
class MlflowClient {
 public:
  /// No request beyond this many entries, all of them together and params or tags alone.
  static constexpr size_t kMostEntries = 1000;
  static constexpr size_t kMostPairs = 100;

  /// `cancel` set to true: a call that waits throws soon.
  MlflowClient(MlflowServer server, const std::atomic<bool>& cancel)
      : server_(std::move(server)), cancel_(cancel) {}

  /// The number of the experiment of that name, which is made where there is none.
  std::string experiment(const std::string& name);
  /// The number of a new run.
  std::string create_run(const std::string& experiment, const std::string& name, int64_t start_time_ms,
                         const MlflowPairs& tags);
  /// The number of the run that has this tag, or an empty text where there is none.
  std::string find_run(const std::string& experiment, const std::string& tag, const std::string& value);
  /// At most kMostEntries metrics, params and tags together, kMostPairs params and kMostPairs tags.
  void log_batch(const std::string& run, const std::vector<MlflowMetric>& metrics, const MlflowPairs& params,
                 const MlflowPairs& tags);
  /// `status`: "RUNNING", "FINISHED" or "FAILED"; those but the first get an end time.
  void update_run(const std::string& run, const std::string& status, std::optional<int64_t> end_time_ms);

 private:
  // `body` empty: GET. The answer's text.
  std::string call(const std::string& method, const std::string& body);

  MlflowServer server_;
  const std::atomic<bool>& cancel_;
};

/// `name` with every character that MLflow does not take in names replaced by '_', and as a path in its plain
/// form ("a//b" is "a/b", "../a" is "__/a"), since MLflow refuses all others.
std::string mlflow_name(std::string name);

}  // namespace accelerate
