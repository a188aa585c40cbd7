#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {

struct HttpRequest {
  std::string url;
  std::string body = {};                  ///< empty: GET, else POST
  std::vector<std::string> headers = {};  ///< "Content-Type: application/json"
  std::string user = {};                  ///< "name:password" for basic authentication, or empty
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds timeout = std::chrono::seconds(10);  ///< of the whole exchange
  const std::atomic<bool>* cancel = nullptr;                     ///< set to true: give up within a second
};

struct HttpResponse {
  long status = 0;  ///< 0: there was no answer, and `error` says why
  std::string body;
  std::string error;
};

/// Why there is no HTTP here, as a sentence, or nothing where there is: it takes libcurl's header when this
/// library is built and libcurl.so.4 when it runs.
std::optional<std::string> http_unavailable();

/// Sends a request and waits for the answer, by libcurl: proxies and certificates are those of the system.
/// Follows no redirects. Thread-safe; never throws for what the network does.
/// @throws ConfigError where there is no HTTP, see http_unavailable().
HttpResponse http_send(const HttpRequest& request);

}  // namespace accelerate
