// Where libcurl's header was not found at build time.
#include "accelerate/core/error.h"
#include "accelerate/tracking/trackers/http_client.h"

namespace accelerate {

std::optional<std::string> http_unavailable() {
  return "this library was built without libcurl (Debian: apt-get install libcurl4-openssl-dev, then build "
         "again)";
}

HttpResponse http_send(const HttpRequest& request) {
  throw ConfigError({.what = *http_unavailable()});
}

}  // namespace accelerate
