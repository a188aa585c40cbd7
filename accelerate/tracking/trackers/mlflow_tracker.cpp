#include "accelerate/tracking/trackers/mlflow_tracker.h"

#include <pwd.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/http_client.h"
#include "accelerate/tracking/trackers/mlflow_client.h"

namespace accelerate {
namespace {

constexpr size_t kMostParamBytes = 6000;
constexpr size_t kMostTagBytes = 5000;
// By which a run is found whose making was not answered.
constexpr const char* kOriginTag = "accelerate.origin";
// So many values refused in a row, and it is not the values.
constexpr int kMostRefusals = 8;

int64_t milliseconds(double seconds) {
  return static_cast<int64_t>(seconds * 1000);
}

std::string user_name() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry != nullptr ? entry->pw_name : std::to_string(::getuid());
}

std::string random_text() {
  std::random_device random;
  return concat(random(), "-", random());
}

std::string program_name() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "unknown";
}

// The tags that MLflow's own client gives a run, and those that the user asks for.
MlflowPairs run_tags(const EnvVars& environment) {
  MlflowPairs out = {{"mlflow.user", user_name()}, {"mlflow.source.name", program_name()}};
  const auto text = environment.get("MLFLOW_TAGS");
  if (!text) return out;
  const auto tags = nlohmann::json::parse(*text, nullptr, false);
  if (!tags.is_object()) {
    throw ConfigError({.what = "MLFLOW_TAGS",
                       .expected = "a JSON object such as {\"team\": \"vision\"}",
                       .got = concat("'", *text, "'")});
  }
  for (const auto& [key, value] : tags.items()) {
    out.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return out;
}

MlflowServer server_of(const MlflowOptions& options, const EnvVars& environment) {
  MlflowServer out{.uri = options.tracking_uri,
                   .connect_timeout = options.connect_timeout,
                   .timeout = options.request_timeout};
  if (out.uri.empty()) out.uri = environment.get("MLFLOW_TRACKING_URI").value_or("");
  while (out.uri.ends_with('/')) out.uri.pop_back();
  if (!out.uri.starts_with("http://") && !out.uri.starts_with("https://")) {
    throw ConfigError({.what = "the tracker mlflow has no server to send to",
                       .expected = "an address that begins with http:// or https://",
                       .got = out.uri.empty() ? "" : concat("'", out.uri, "'"),
                       .hint = "Set MLFLOW_TRACKING_URI=http://host:5000, or the option tracking_uri."});
  }
  out.token = environment.get("MLFLOW_TRACKING_TOKEN").value_or("");
  if (const auto user = environment.get("MLFLOW_TRACKING_USERNAME")) {
    out.user = concat(*user, ":", environment.get("MLFLOW_TRACKING_PASSWORD").value_or(""));
  }
  return out;
}

}  // namespace

// The queue, and the thread that empties it.
class MlflowTracker::Sender {
 public:
  struct Run {
    std::string experiment;
    std::string name;
    std::string id;  // empty: to be made
    std::string origin;
    int64_t start_time_ms = 0;
    MlflowPairs tags;
  };

  Sender(MlflowServer server, Run run, const MlflowOptions& options, std::shared_ptr<Logger> logger)
      : where_(server.uri),
        client_(std::move(server), cancel_),
        run_(std::move(run)),
        options_(options),
        logger_(std::move(logger)),
        thread_([this] { work(); }) {}

  ~Sender() { stop(); }

  void add(std::vector<MlflowMetric> metrics, MlflowPairs params, MlflowPairs tags) {
    const std::lock_guard lock(mutex_);
    for (MlflowMetric& metric : metrics) add_to(metrics_, std::move(metric));
    for (auto& param : params) add_to(params_, std::move(param));
    for (auto& tag : tags) add_to(tags_, std::move(tag));
    if (metrics_.size() >= MlflowClient::kMostEntries) wake_.notify_one();
  }

  // Waits until all is sent and the run closed, or the limit has passed. What was lost, or an empty text.
  std::string finish(const std::string& status) {
    {
      std::unique_lock lock(mutex_);
      status_ = status;
      finishing_ = true;
      if (failures_ > 0 && waiting() > 0) {
        logger_->warning(
            concat("mlflow (", where_, "): ", waiting(), " values wait for the server (", last_failure_,
                   "); trying for up to ", options_.finish_timeout.count() / 1000, " s more"),
            LogRanks::kAll);
      }
      wake_.notify_one();
      done_.wait_for(lock, options_.finish_timeout, [this] { return ended_; });
    }
    stop();
    const uint64_t lost = lost_ + waiting();
    if (lost == 0 && closed_) return "";
    std::string out = concat("mlflow (", where_, "): ");
    out += lost > 0 ? concat(lost, " of ", added_, " values are lost") : "the run could not be closed";
    if (!closed_ && lost > 0) out += ", and the run could not be closed";
    return out + (last_failure_.empty() ? std::string() : concat(" (", last_failure_, ")"));
  }

 private:
  struct Batch {
    std::vector<MlflowMetric> metrics;
    MlflowPairs params;
    MlflowPairs tags;
    size_t size() const { return metrics.size() + params.size() + tags.size(); }
  };

  template <class T>
  void add_to(std::deque<T>& queue, T item) {
    ++added_;
    if (queue.size() >= options_.max_waiting) {
      ++lost_;
    } else {
      queue.push_back(std::move(item));
    }
  }

  template <class T>
  static std::vector<T> first_of(const std::deque<T>& queue, size_t most) {
    return {queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(std::min(queue.size(), most))};
  }

  size_t waiting() const { return metrics_.size() + params_.size() + tags_.size(); }

  void work() {
    std::unique_lock lock(mutex_);
    while (!cancel_) {
      const bool failing = failures_ > 0;
      // After a failure: 1, 2, 4, ... times the interval, at most a minute; while finishing, the interval.
      const auto pause = failing && !finishing_ ? std::min<std::chrono::milliseconds>(
                                                      options_.send_interval * (1 << std::min(failures_, 6)),
                                                      std::chrono::minutes(1))
                                                : options_.send_interval;
      if (!finishing_ || failing) {
        wake_.wait_for(lock, pause, [&] {
          return cancel_ || (finishing_ && !failing) ||
                 (!failing && metrics_.size() >= MlflowClient::kMostEntries);
        });
      }
      if (cancel_) break;
      if (!send_all(lock) || !finishing_ || waiting() > 0) continue;
      if (close_run(lock)) break;
    }
    ended_ = true;
    done_.notify_all();
  }

  // With the lock, given up while a request runs. False after a failure that may pass.
  bool send_all(std::unique_lock<std::mutex>& lock) {
    if (run_.id.empty() && !refused_) {
      const auto failure = unlocked(lock, [&] { make_run(); });
      if (failure && !failure->for_good) return false;
      refused_ = failure.has_value();
    }
    if (refused_) {
      drop_all();
      return true;
    }
    while (!cancel_ && waiting() > 0) {
      const Batch batch = next_batch();
      const auto failure =
          unlocked(lock, [&] { client_.log_batch(run_.id, batch.metrics, batch.params, batch.tags); });
      if (failure && !failure->for_good) return false;
      settle(batch, failure);
    }
    return true;
  }

  // A server that was slow or died may have made the run without telling us.
  void make_run() {
    const std::string experiment = client_.experiment(run_.experiment);
    if (asked_for_run_) run_.id = client_.find_run(experiment, kOriginTag, run_.origin);
    asked_for_run_ = true;
    if (run_.id.empty()) {
      run_.id = client_.create_run(experiment, run_.name, run_.start_time_ms, run_.tags);
    }
  }

  Batch next_batch() const {
    Batch out;
    out.params = first_of(params_, std::min(limit_, MlflowClient::kMostPairs));
    out.tags = first_of(tags_, std::min(limit_ - out.params.size(), MlflowClient::kMostPairs));
    out.metrics = first_of(metrics_, limit_ - out.params.size() - out.tags.size());
    return out;
  }

  // Of values that are refused together only some are to blame: smaller and smaller requests find them.
  void settle(const Batch& batch, const std::optional<MlflowFailure>& refusal) {
    if (!refusal) {
      refusals_ = 0;
      limit_ = std::min(limit_ * 2, MlflowClient::kMostEntries);
    } else if (refusal->by_content && batch.size() > 1 && refusals_ < kMostRefusals) {
      limit_ = batch.size() / 2;
      return;
    } else {
      ++refusals_;
      lost_ += batch.size();
      if (refusals_ >= kMostRefusals) limit_ = MlflowClient::kMostEntries;
    }
    metrics_.erase(metrics_.begin(), metrics_.begin() + static_cast<std::ptrdiff_t>(batch.metrics.size()));
    params_.erase(params_.begin(), params_.begin() + static_cast<std::ptrdiff_t>(batch.params.size()));
    tags_.erase(tags_.begin(), tags_.begin() + static_cast<std::ptrdiff_t>(batch.tags.size()));
  }

  bool close_run(std::unique_lock<std::mutex>& lock) {
    if (refused_) return true;
    const auto failure =
        unlocked(lock, [&] { client_.update_run(run_.id, status_, milliseconds(wall_time_seconds())); });
    closed_ = !failure;
    return !failure || failure->for_good;
  }

  // Nothing when all went well.
  template <class Action>
  std::optional<MlflowFailure> unlocked(std::unique_lock<std::mutex>& lock, Action&& action) {
    std::optional<MlflowFailure> failure;
    lock.unlock();
    try {
      action();
    } catch (const MlflowFailure& error) {
      failure = error;
    } catch (const std::exception& error) {
      failure = MlflowFailure{error.what(), true};
    }
    lock.lock();
    failures_ = failure && !failure->for_good ? failures_ + 1 : 0;
    if (!failure) return failure;
    last_failure_ = failure->reason;
    if (!told_) {
      told_ = true;
      logger_->warning(concat("mlflow (", where_, "): ", failure->reason,
                              failure->for_good ? "" : "; values are kept and sent later"),
                       LogRanks::kAll);
    }
    return failure;
  }

  void drop_all() {
    lost_ += waiting();
    metrics_.clear();
    params_.clear();
    tags_.clear();
  }

  void stop() {
    cancel_ = true;
    {
      const std::lock_guard lock(mutex_);
      wake_.notify_one();
    }
    if (thread_.joinable()) thread_.join();
  }

  std::string where_;
  std::atomic<bool> cancel_{false};
  MlflowClient client_;         // the thread's
  Run run_;                     // the thread's
  bool asked_for_run_ = false;  // the thread's
  MlflowOptions options_;
  std::shared_ptr<Logger> logger_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::deque<MlflowMetric> metrics_;
  std::deque<std::pair<std::string, std::string>> params_;
  std::deque<std::pair<std::string, std::string>> tags_;
  uint64_t added_ = 0;
  uint64_t lost_ = 0;
  size_t limit_ = MlflowClient::kMostEntries;  // of the next request
  int refusals_ = 0;                           // of values, in a row
  int failures_ = 0;                           // of requests that may go later, in a row
  std::string last_failure_;
  std::string status_;
  bool told_ = false;
  bool refused_ = false;  // there will never be a run
  bool finishing_ = false;
  bool closed_ = false;
  bool ended_ = false;
  std::thread thread_;  // last: it uses all of the above
};

MlflowTracker::MlflowTracker(MlflowOptions options) : options_(std::move(options)) {}

MlflowTracker::~MlflowTracker() = default;

void MlflowTracker::start(const TrackerContext& context) {
  if (const auto problem = http_unavailable()) {
    throw ConfigError({.what = concat("the tracker mlflow can't be used: ", *problem)});
  }
  TrackerArgumentReader arguments(name(), context.arguments);
  const auto take = [&](std::string_view key, const char* variable, std::string& value) {
    if (const auto given = arguments.text(key)) value = *given;
    if (value.empty() && variable != nullptr) value = context.environment.get(variable).value_or("");
  };
  take("tracking_uri", "MLFLOW_TRACKING_URI", options_.tracking_uri);
  take("experiment_name", "MLFLOW_EXPERIMENT_NAME", options_.experiment_name);
  take("run_name", nullptr, options_.run_name);
  take("run_id", "MLFLOW_RUN_ID", options_.run_id);
  if (const auto seconds = arguments.number("finish_timeout_secs", 0, 86400)) {
    options_.finish_timeout = std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
  }
  arguments.done();
  Sender::Run run{.experiment = options_.experiment_name.empty() ? context.project : options_.experiment_name,
                  .name = options_.run_name.empty() ? context.run_name : options_.run_name,
                  .id = options_.run_id,
                  .origin = random_text(),
                  .start_time_ms = milliseconds(context.started),
                  .tags = run_tags(context.environment)};
  run.tags.emplace_back(kOriginTag, run.origin);
  sender_ = std::make_unique<Sender>(server_of(options_, context.environment), std::move(run), options_,
                                     context.logger);
}

void MlflowTracker::store_init_configuration(const TrackedValues& values) {
  MlflowPairs params;
  for (const auto& [name, value] : without_repeats(values)) {
    params.emplace_back(mlflow_name(name), value.text().substr(0, kMostParamBytes));
  }
  sender_->add({}, std::move(params), {});
}

void MlflowTracker::log(const TrackedValues& values, std::optional<int64_t> step) {
  const int64_t now = milliseconds(wall_time_seconds());
  const int64_t at = step.value_or(next_step_);
  next_step_ = at + 1;
  std::vector<MlflowMetric> metrics;
  MlflowPairs tags;
  for (const auto& [name, value] : values) {
    if (const auto number = value.number()) {
      metrics.push_back({mlflow_name(name), *number, now, at});
    } else {
      tags.emplace_back(mlflow_name(name), value.text().substr(0, kMostTagBytes));
    }
  }
  sender_->add(std::move(metrics), {}, std::move(tags));
}

void MlflowTracker::finish(RunStatus status) {
  if (!sender_) return;
  const std::string lost = sender_->finish(status == RunStatus::kFinished ? "FINISHED" : "FAILED");
  sender_.reset();
  if (!lost.empty()) {
    throw Error({.what = lost, .hint = "See whether the server runs and can be reached from this machine."});
  }
}

}  // namespace accelerate
