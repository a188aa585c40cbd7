#include "accelerate/tracking/trackers/mlflow_client.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/http_client.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr size_t kMostNameBytes = 250;

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// What the server says went wrong, in one line.
std::string refusal(const HttpResponse& response) {
  std::string out = concat("HTTP ", response.status);
  const json body = json::parse(response.body, nullptr, false);
  if (body.is_object() && body.contains("message") && body["message"].is_string()) {
    if (body.contains("error_code") && body["error_code"].is_string()) {
      out += " " + body["error_code"].get<std::string>();
    }
    out += ": " + body["message"].get<std::string>();
  }
  constexpr size_t kMost = 300;
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out.size() > kMost ? out.substr(0, kMost) + " ..." : out;
}

std::string text_at(const std::string& body, const std::vector<std::string>& path) {
  json value = json::parse(body, nullptr, false);
  for (const std::string& name : path) {
    value = value.is_object() && value.contains(name) ? value[name] : json();
  }
  if (value.is_string()) return value.get<std::string>();
  throw MlflowFailure{concat("the answer has no ", join(path, "."), "; is this an MLflow server?"), true};
}

// As protocol buffers have them in JSON.
json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

json pairs(const MlflowPairs& items) {
  json out = json::array();
  for (const auto& [key, value] : items) out.push_back({{"key", key}, {"value", value}});
  return out;
}

std::string percent_encoded(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

}  // namespace

std::string mlflow_name(std::string name) {
  for (char& c : name) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         c == '_' || c == '-' || c == '.' || c == ' ' || c == '/';
    if (!allowed) c = '_';
  }
  if (name.size() > kMostNameBytes) name.resize(kMostNameBytes);
  std::vector<std::string> parts;
  for (std::string& part : split(name, '/')) {
    if (part == ".." || (parts.empty() && part.starts_with(".."))) part.replace(0, 2, "__");
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
  }
  return parts.empty() ? "_" : join(parts, "/");
}

std::string MlflowClient::call(const std::string& method, const std::string& body) {
  HttpRequest request{.url = concat(server_.uri, "/api/2.0/mlflow/", method),
                      .body = body,
                      .headers = {"Content-Type: application/json"},
                      .user = server_.user,
                      .connect_timeout = server_.connect_timeout,
                      .timeout = server_.timeout,
                      .cancel = &cancel_};
  if (!server_.token.empty()) request.headers.push_back("Authorization: Bearer " + server_.token);
  const HttpResponse response = http_send(request);
  if (response.status == 0) throw MlflowFailure{response.error, false};
  if (response.status >= 200 && response.status < 300) return response.body;
  // Too early, too many requests, timed out on its side, or the server's own trouble: later it may go.
  const bool later =
      response.status == 408 || response.status == 425 || response.status == 429 || response.status >= 500;
  throw MlflowFailure{.reason = refusal(response),
                      .for_good = !later,
                      .by_content = response.status == 400 || response.status == 413};
}

std::string MlflowClient::experiment(const std::string& name) {
  const auto existing = [&] {
    return text_at(call("experiments/get-by-name?experiment_name=" + percent_encoded(name), ""),
                   {"experiment", "experiment_id"});
  };
  try {
    return existing();
  } catch (const MlflowFailure& failure) {
    if (!failure.for_good || failure.reason.find("RESOURCE_DOES_NOT_EXIST") == std::string::npos) throw;
  }
  try {
    return text_at(call("experiments/create", dumped({{"name", name}})), {"experiment_id"});
  } catch (const MlflowFailure& failure) {
    // Another run was faster.
    if (failure.reason.find("RESOURCE_ALREADY_EXISTS") == std::string::npos) throw;
  }
  return existing();
}

std::string MlflowClient::create_run(const std::string& experiment, const std::string& name,
                                     int64_t start_time_ms, const MlflowPairs& tags) {
  const json body = {{"experiment_id", experiment},
                     {"run_name", name},
                     {"start_time", start_time_ms},
                     {"tags", pairs(tags)}};
  return text_at(call("runs/create", dumped(body)), {"run", "info", "run_id"});
}

std::string MlflowClient::find_run(const std::string& experiment, const std::string& tag,
                                   const std::string& value) {
  const json body = {{"experiment_ids", json::array({experiment})},
                     {"filter", concat("tags.`", tag, "` = '", value, "'")},
                     {"max_results", 1}};
  const json found = json::parse(call("runs/search", dumped(body)), nullptr, false);
  const bool there =
      found.is_object() && found.contains("runs") && found["runs"].is_array() && !found["runs"].empty();
  return there ? text_at(found["runs"][0].dump(), {"info", "run_id"}) : "";
}

void MlflowClient::log_batch(const std::string& run, const std::vector<MlflowMetric>& metrics,
                             const MlflowPairs& params, const MlflowPairs& tags) {
  json list = json::array();
  for (const MlflowMetric& metric : metrics) {
    list.push_back({{"key", metric.key},
                    {"value", number(metric.value)},
                    {"timestamp", metric.timestamp_ms},
                    {"step", metric.step}});
  }
  call("runs/log-batch",
       dumped({{"run_id", run}, {"metrics", list}, {"params", pairs(params)}, {"tags", pairs(tags)}}));
}

void MlflowClient::update_run(const std::string& run, const std::string& status,
                              std::optional<int64_t> end_time_ms) {
  json body = {{"run_id", run}, {"status", status}};
  if (end_time_ms) body["end_time"] = *end_time_ms;
  call("runs/update", dumped(body));
}

}  // namespace accelerate
