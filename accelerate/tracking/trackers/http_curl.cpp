#include <curl/curl.h>
#include <dlfcn.h>

#include <memory>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/http_client.h"

// libcurl is loaded when the first request is made and not linked: it brings some thirty libraries, which
// neither `accel` nor a program that talks to no server should load at its start.

namespace accelerate {
namespace {

constexpr size_t kMostBodyBytes = size_t{16} << 20;

struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  std::string problem;

  Curl() {
    void* library = nullptr;
    for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
    }
    if (library == nullptr) {
      problem = "libcurl.so.4 is not installed (Debian: apt-get install libcurl4)";
      return;
    }
    bool all = load(library, "curl_global_init", global_init);
    all &= load(library, "curl_easy_init", easy_init);
    all &= load(library, "curl_easy_setopt", easy_setopt);
    all &= load(library, "curl_easy_perform", easy_perform);
    all &= load(library, "curl_easy_getinfo", easy_getinfo);
    all &= load(library, "curl_easy_cleanup", easy_cleanup);
    all &= load(library, "curl_easy_strerror", easy_strerror);
    all &= load(library, "curl_slist_append", slist_append);
    all &= load(library, "curl_slist_free_all", slist_free_all);
    if (!all) {
      problem = "libcurl.so.4 lacks functions of libcurl's easy interface";
    } else if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      problem = "libcurl could not be initialized";
    }
  }

  template <class F>
  static bool load(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    return function != nullptr;
  }
};

// Loaded once a process, and never unloaded: its libraries have threads and exit handlers.
const Curl& curl() {
  static const Curl* const kCurl = new Curl;
  return *kCurl;
}

size_t take_body(char* data, size_t size, size_t count, void* target) {
  auto& body = *static_cast<std::string*>(target);
  if (body.size() + size * count > kMostBodyBytes) return 0;  // an error for libcurl
  body.append(data, size * count);
  return size * count;
}

int look_for_cancel(void* cancel, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* flag = static_cast<const std::atomic<bool>*>(cancel);
  return flag != nullptr && flag->load() ? 1 : 0;
}

}  // namespace

std::optional<std::string> http_unavailable() {
  return curl().problem.empty() ? std::nullopt : std::optional(curl().problem);
}

HttpResponse http_send(const HttpRequest& request) {
  if (const auto problem = http_unavailable()) throw ConfigError({.what = *problem});
  const Curl& lib = curl();
  const std::unique_ptr<CURL, void (*)(CURL*)> handle(lib.easy_init(), lib.easy_cleanup);
  if (!handle) return {.status = 0, .body = {}, .error = "libcurl could not start a request"};
  HttpResponse response;
  char reason[CURL_ERROR_SIZE] = "";
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(nullptr, lib.slist_free_all);
  for (const std::string& header : request.headers) {
    // The list's head stays the same but for the first.
    curl_slist* list = lib.slist_append(headers.get(), header.c_str());
    if (list != nullptr && !headers) headers.reset(list);
  }
  const auto set = [&](CURLoption option, auto value) { lib.easy_setopt(handle.get(), option, value); };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_NOSIGNAL, 1L);  // signals belong to the program
  set(CURLOPT_ERRORBUFFER, reason);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout.count()));
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_WRITEFUNCTION, &take_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&response.body));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &look_for_cancel);
  set(CURLOPT_XFERINFODATA, const_cast<void*>(static_cast<const void*>(request.cancel)));
  if (!request.user.empty()) set(CURLOPT_USERPWD, request.user.c_str());
  if (!request.body.empty()) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.data());
  }
  const CURLcode result = lib.easy_perform(handle.get());
  if (result != CURLE_OK) {
    response.error = reason[0] != '\0' ? reason : lib.easy_strerror(result);
    return response;
  }
  lib.easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &response.status);
  return response;
}

}  // namespace accelerate
