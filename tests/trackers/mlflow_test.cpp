// The MLflow tracker against a server that records what it is asked and answers as MLflow's documents say.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "accelerate/core/error.h"
#include "accelerate/tracking/trackers/mlflow_client.h"
#include "accelerate/tracking/trackers/mlflow_tracker.h"
#include "accelerate/tracking/trackers/tracker_set.h"
#include "launch_test_support.h"
#include "support/checks.h"
#include "test_support.h"

using namespace accelerate;
using accelerate::test::error_of;
using accelerate::testing::eventually;
using nlohmann::json;
using std::chrono::milliseconds;

namespace {

struct Answer {
  int status = 200;
  std::string body = "{}";
};

struct Request {
  std::string path;
  std::string headers;
  json body;
};

// One connection at a time, closed after its answer.
class RecordingServer {
 public:
  using Handler = std::function<Answer(const Request&)>;

  // `port` 0: any free one.
  explicit RecordingServer(Handler handler, int port = 0) : handler_(std::move(handler)) {
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(fd_.get(), plain, sizeof address) != 0 || ::listen(fd_.get(), 16) != 0 ||
        ::getsockname(fd_.get(), plain, &size) != 0) {
      throw std::runtime_error("no listening socket");
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~RecordingServer() {
    stop_ = true;
    thread_.join();
  }

  int port() const { return port_; }
  std::string uri() const { return concat("http://127.0.0.1:", port_); }
  std::vector<Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd item{fd_.get(), POLLIN, 0};
      if (::poll(&item, 1, 20) <= 0) continue;
      const UniqueFd connection(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection) answer(connection.get());
    }
  }

  void answer(int fd) {
    std::string text;
    size_t body_at = std::string::npos;
    size_t wanted = 0;
    while (body_at == std::string::npos || text.size() < body_at + wanted) {
      pollfd item{fd, POLLIN, 0};
      char buffer[8192];
      if (::poll(&item, 1, 5000) <= 0) return;
      const ssize_t got = ::read(fd, buffer, sizeof buffer);
      if (got <= 0) return;
      text.append(buffer, static_cast<size_t>(got));
      if (body_at != std::string::npos) continue;
      const size_t end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      body_at = end + 4;
      const size_t length = to_lower(text).find("content-length:");
      if (length < end) wanted = std::stoul(text.substr(length + 15));
      if (to_lower(text.substr(0, end)).find("expect: 100-continue") != std::string::npos) {
        write_all(fd, "HTTP/1.1 100 Continue\r\n\r\n");
      }
    }
    Request request;
    request.path = text.substr(text.find(' ') + 1, text.find(' ', text.find(' ') + 1) - text.find(' ') - 1);
    request.headers = text.substr(0, body_at);
    request.body = json::parse(text.substr(body_at), nullptr, false);
    Answer reply = handler_(request);
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
    }
    write_all(fd, concat("HTTP/1.1 ", reply.status,
                         " X\r\nContent-Type: application/json\r\nContent-Length: ", reply.body.size(),
                         "\r\nConnection: close\r\n\r\n", reply.body));
  }

  static void write_all(int fd, const std::string& text) {
    if (::send(fd, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) return;
  }

  Handler handler_;
  UniqueFd fd_;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<Request> requests_;
  std::thread thread_;
};

// As a server that knows no experiment yet.
Answer as_documented(const Request& request) {
  if (request.path.starts_with("/api/2.0/mlflow/experiments/get-by-name")) {
    return {404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST","message":"Could not find experiment"})"};
  }
  if (request.path.ends_with("experiments/create")) return {200, R"({"experiment_id":"7"})"};
  if (request.path.ends_with("runs/create")) return {200, R"({"run":{"info":{"run_id":"abc"}}})"};
  return {};
}

// A machine's proxy has nothing to do with a server in this process.
const int kNoProxy = ::setenv("no_proxy", "127.0.0.1", /*overwrite=*/1);

TrackerSetOptions options_for(std::shared_ptr<MlflowTracker> tracker) {
  return {
      .log_with = {std::move(tracker)}, .project = {}, .logger = std::make_shared<Logger>(0, LogLevel::kOff)};
}

MlflowOptions quick(const std::string& uri) {
  return {.tracking_uri = uri,
          .send_interval = milliseconds(20),
          .connect_timeout = milliseconds(500),
          .request_timeout = milliseconds(500),
          .finish_timeout = milliseconds(1500)};
}

int64_t milliseconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin).count();
}

size_t metrics_in(const std::vector<Request>& requests) {
  size_t out = 0;
  for (const Request& request : requests) {
    if (request.path.ends_with("log-batch")) out += request.body["metrics"].size();
  }
  return out;
}

}  // namespace

TEST_CASE("MLflow: a run from its creation to its end") {
  RecordingServer server(as_documented);
  TrackerSetOptions options = options_for(std::make_shared<MlflowTracker>(quick(server.uri() + "/")));
  options.environment.set("MLFLOW_TAGS", R"({"team":"vision"})");
  options.environment.set("MLFLOW_TRACKING_TOKEN", "secret");
  TrackerSet trackers(options);
  trackers.init("digits & more", {{"lr", 0.125}, {"odd:name?", "x"}});
  trackers.log({{"loss", 0.5}, {"note", "hello"}, {"bad", NAN}}, 3);
  trackers.log({{"loss", 0.25}});
  trackers.finish();
  const auto requests = server.requests();
  REQUIRE(requests.size() >= 5);
  CHECK(requests[0].path == "/api/2.0/mlflow/experiments/get-by-name?experiment_name=digits%20%26%20more");
  CHECK_THAT(requests[0].headers,
             ContainsSubstring("GET ") && ContainsSubstring("Authorization: Bearer secret"));
  CHECK(requests[1].path == "/api/2.0/mlflow/experiments/create");
  CHECK_THAT(requests[1].headers, ContainsSubstring("POST "));
  CHECK(requests[1].body["name"] == "digits & more");
  CHECK(requests[2].path == "/api/2.0/mlflow/runs/create");
  CHECK(requests[2].body["experiment_id"] == "7");
  CHECK(requests[2].body["start_time"].get<int64_t>() > 1'700'000'000'000);
  const json& tags = requests[2].body["tags"];
  CHECK(std::count(tags.begin(), tags.end(), json{{"key", "team"}, {"value", "vision"}}) == 1);
  json metrics = json::array();
  json params = json::array();
  json logged_tags = json::array();
  for (const Request& request : requests) {
    if (!request.path.ends_with("log-batch")) continue;
    CHECK(request.body["run_id"] == "abc");
    for (const auto& item : request.body["metrics"]) metrics.push_back(item);
    for (const auto& item : request.body["params"]) params.push_back(item);
    for (const auto& item : request.body["tags"]) logged_tags.push_back(item);
  }
  CHECK(params == json::parse(R"([{"key":"lr","value":"0.125"},{"key":"odd_name_","value":"x"}])"));
  CHECK(logged_tags == json::parse(R"([{"key":"note","value":"hello"}])"));
  REQUIRE(metrics.size() == 3);
  CHECK(metrics[0]["key"] == "loss");
  CHECK(metrics[0]["value"] == 0.5);
  CHECK(metrics[0]["step"] == 3);
  CHECK(metrics[1]["value"] == "NaN");
  CHECK(metrics[2]["step"] == 4);
  CHECK(requests.back().path == "/api/2.0/mlflow/runs/update");
  CHECK(requests.back().body["status"] == "FINISHED");
  CHECK(requests.back().body["end_time"].get<int64_t>() > 1'700'000'000'000);
}

TEST_CASE("MLflow: a run that nobody ended has failed, and one that exists goes on") {
  RecordingServer server(as_documented);
  {
    MlflowOptions options = quick(server.uri());
    options.run_id = "older";
    TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(options)));
    trackers.init("p");
    trackers.log({{"loss", 1}}, 1);
  }
  const auto requests = server.requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].body["run_id"] == "older");
  CHECK(requests[1].body["status"] == "FAILED");
}

TEST_CASE("MLflow: many values go in requests of a bounded size") {
  RecordingServer server(as_documented);
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p");
  for (int64_t step = 0; step < 5000; ++step) trackers.log({{"loss", 1}}, step);
  trackers.finish();
  const auto requests = server.requests();
  CHECK(metrics_in(requests) == 5000);
  int64_t next = 0;
  for (const Request& request : requests) {
    if (!request.path.ends_with("log-batch")) continue;
    CHECK(request.body["metrics"].size() <= 1000);
    for (const auto& metric : request.body["metrics"]) CHECK(metric["step"] == next++);
  }
}

TEST_CASE("MLflow: a server that is down never holds up a step, and what was lost is told at the end") {
  int port = 0;
  {
    const RecordingServer gone(as_documented);
    port = gone.port();
  }
  MlflowOptions options = quick(concat("http://127.0.0.1:", port));
  options.max_waiting = 100;
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(options)));
  CHECK(milliseconds_of([&] {
          trackers.init("p", {{"lr", 1}});
          for (int64_t step = 0; step < 1000; ++step) trackers.log({{"loss", 1}}, step);
        }) < 1000);
  std::string told;
  CHECK(milliseconds_of([&] { told = error_of<Error>([&] { trackers.finish(); }); }) < 10'000);
  CHECK_THAT(told, ContainsSubstring("1001 of 1001 values are lost") && ContainsSubstring("connect"));
}

TEST_CASE("MLflow: a server that never answers holds up neither a step nor the end") {
  std::atomic<bool> release{false};
  RecordingServer server([&](const Request&) {
    eventually([&] { return release.load(); });
    return Answer{};
  });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  CHECK(milliseconds_of([&] {
          trackers.init("p");
          for (int64_t step = 0; step < 1000; ++step) trackers.log({{"loss", 1}}, step);
        }) < 1000);
  std::string told;
  CHECK(milliseconds_of([&] { told = error_of<Error>([&] { trackers.finish(); }); }) < 10'000);
  release = true;
  CHECK_THAT(told, ContainsSubstring("1000 of 1000 values are lost"));
}

TEST_CASE("MLflow: a server that comes up late gets everything") {
  int port = 0;
  {
    const RecordingServer gone(as_documented);
    port = gone.port();
  }
  MlflowOptions options = quick(concat("http://127.0.0.1:", port));
  options.finish_timeout = std::chrono::seconds(20);
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(options)));
  trackers.init("p", {{"lr", 1}});
  for (int64_t step = 0; step < 50; ++step) trackers.log({{"loss", 1}}, step);
  ::usleep(100'000);
  int busy = 2;  // it is there, but not ready
  RecordingServer server(
      [&busy](const Request& request) {
        if (busy > 0) return Answer{busy-- == 1 ? 503 : 429, "not yet"};
        return as_documented(request);
      },
      port);
  CHECK_NOTHROW(trackers.finish());
  CHECK(metrics_in(server.requests()) == 50);
}

TEST_CASE("MLflow: what the server refuses is counted, and the rest goes on") {
  RecordingServer server([](const Request& request) {
    const bool bad = request.path.ends_with("log-batch") && request.body["params"].size() == 1;
    if (bad) return Answer{400, R"({"error_code":"INVALID_PARAMETER_VALUE","message":"no such luck"})"};
    return as_documented(request);
  });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p", {{"lr", 1}});
  REQUIRE(eventually([&] { return server.requests().size() >= 4; }));
  trackers.log({{"loss", 1}}, 1);
  CHECK_THAT(error_of<Error>([&] { trackers.finish(); }),
             ContainsSubstring("1 of 2 values are lost") && ContainsSubstring("INVALID_PARAMETER_VALUE"));
  const auto requests = server.requests();
  CHECK(requests.back().body["status"] == "FINISHED");
  CHECK(metrics_in(requests) == 1);
}

TEST_CASE("MLflow: one value that is refused costs no other") {
  RecordingServer server([](const Request& request) {
    if (!request.path.ends_with("log-batch")) return as_documented(request);
    for (const auto& metric : request.body["metrics"]) {
      if (metric["step"] == 321) return Answer{400, R"({"error_code":"INVALID_PARAMETER_VALUE"})"};
    }
    return as_documented(request);
  });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p", {{"lr", 1}});
  for (int64_t step = 0; step < 2000; ++step) trackers.log({{"loss", 1}}, step);
  CHECK_THAT(error_of<Error>([&] { trackers.finish(); }),
             ContainsSubstring("1 of 2001 values are lost") && !ContainsSubstring("could not be closed"));
}

TEST_CASE("MLflow: a server that refuses every value is not asked for each of them") {
  RecordingServer server([](const Request& request) {
    if (request.path.ends_with("log-batch")) return Answer{400, "{}"};
    return as_documented(request);
  });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p");
  for (int64_t step = 0; step < 2000; ++step) trackers.log({{"loss", 1}}, step);
  CHECK_THAT(error_of<Error>([&] { trackers.finish(); }), ContainsSubstring("2000 of 2000 values are lost"));
  CHECK(server.requests().size() < 50);
}

TEST_CASE("MLflow: a run whose making was not answered is found, not made again") {
  std::atomic<int> made{0};
  std::string origin;
  RecordingServer server([&](const Request& request) {
    if (request.path.ends_with("runs/create")) {
      ++made;
      origin = request.body["tags"].back()["value"].get<std::string>();
      return Answer{502, "made, but the way back is cut"};
    }
    if (request.path.ends_with("runs/search")) {
      CHECK(request.body["experiment_ids"] == json::array({"7"}));
      CHECK(request.body["filter"] == concat("tags.`accelerate.origin` = '", origin, "'"));
      return Answer{200, R"({"runs":[{"info":{"run_id":"abc"}}]})"};
    }
    return as_documented(request);
  });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p");
  trackers.log({{"loss", 1}}, 1);
  CHECK_NOTHROW(trackers.finish());
  CHECK(made == 1);
  CHECK(server.requests().back().body["run_id"] == "abc");
}

TEST_CASE("MLflow: names are paths as well, and have to be plain ones") {
  CHECK(mlflow_name("train/loss") == "train/loss");
  CHECK(mlflow_name("a:b?") == "a_b_");
  CHECK(mlflow_name("/a//b/./c/") == "a/b/c");
  CHECK(mlflow_name("../a/..b") == "__/a/..b");
  CHECK(mlflow_name("..a/..") == "__a/__");
  CHECK(mlflow_name("") == "_");
  CHECK(mlflow_name(".") == "_");
  CHECK(mlflow_name(std::string(300, 'x')).size() == 250);
}

TEST_CASE("MLflow: a server that lets nobody in is told once, and costs no time") {
  RecordingServer server([](const Request&) { return Answer{401, "{}"}; });
  TrackerSet trackers(options_for(std::make_shared<MlflowTracker>(quick(server.uri()))));
  trackers.init("p");
  for (int64_t step = 0; step < 10; ++step) trackers.log({{"loss", 1}}, step);
  CHECK_THAT(error_of<Error>([&] { trackers.finish(); }),
             ContainsSubstring("10 of 10 values are lost") && ContainsSubstring("HTTP 401"));
  CHECK(server.requests().size() == 1);
}

TEST_CASE("MLflow: an experiment that another run makes at the same moment is taken") {
  std::atomic<int> asked{0};
  RecordingServer server([&asked](const Request& request) {
    if (request.path.find("get-by-name") != std::string::npos && ++asked > 1) {
      return Answer{200, R"({"experiment":{"experiment_id":"9"}})"};
    }
    if (request.path.ends_with("experiments/create")) {
      return Answer{400, R"({"error_code":"RESOURCE_ALREADY_EXISTS","message":"exists"})"};
    }
    return as_documented(request);
  });
  const std::atomic<bool> cancel{false};
  MlflowClient client({.uri = server.uri()}, cancel);
  CHECK(client.experiment("p") == "9");
}

TEST_CASE("MLflow: what can't be used is refused when the run begins") {
  const auto told = [](const MlflowOptions& options, const EnvVars& environment) {
    TrackerSetOptions set = options_for(std::make_shared<MlflowTracker>(options));
    set.environment = environment;
    TrackerSet trackers(set);
    return error_of<ConfigError>([&] { trackers.init("p"); });
  };
  CHECK_THAT(told({}, {}), ContainsSubstring("MLFLOW_TRACKING_URI"));
  CHECK_THAT(told({.tracking_uri = "./mlruns"}, {}), ContainsSubstring("http://"));
  EnvVars tags;
  tags.set("MLFLOW_TAGS", "team=vision");
  CHECK_THAT(told(quick("http://127.0.0.1:1"), tags), ContainsSubstring("a JSON object"));
}
