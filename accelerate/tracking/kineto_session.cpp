// The only file that sees torch's profiler.
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "accelerate/tracking/kineto_session_internal.h"

namespace torch::autograd::profiler {
// Its header, kineto_shim.h, includes one of Kineto's that is on no include path of LibTorch's users.
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}  // namespace torch::autograd::profiler

namespace accelerate::detail {
namespace {

namespace kineto = torch::autograd::profiler;
using Activities = std::set<kineto::ActivityType>;

constexpr const char* kMemoryEvent = "[memory]";
constexpr const char* kTraceName = "  \"traceName\": ";

// As process-wide as Kineto itself.
std::atomic<bool>& taken() {
  static std::atomic<bool> value = false;
  return value;
}

void silence_kineto() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0); });
}

kineto::ProfilerConfig config_of(const KinetoOptions& options) {
  torch::profiler::impl::ExperimentalConfig extras;
  extras.profile_all_threads = options.all_threads;
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO, options.record_shapes, options.profile_memory,
                                options.with_stack, options.with_flops, options.with_modules, extras);
}

Activities activities_of(const KinetoOptions& options) {
  Activities out = {kineto::ActivityType::CPU};
  if (options.cuda) out.insert(kineto::ActivityType::CUDA);
  return out;
}

// Events that Python's tables leave out as well.
bool is_bookkeeping(const std::string& name) {
  static const std::set<std::string> kNames = {"[OutOfMemory]",
                                               "profiler::_record_function_enter",
                                               "profiler::_record_function_enter_new",
                                               "profiler::_record_function_exit",
                                               "aten::is_leaf",
                                               "aten::output_nr",
                                               "aten::_version"};
  return kNames.contains(name);
}

bool is_plain(const std::string& name) {
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; });
}

class Trace final : public KinetoTrace {
 public:
  explicit Trace(std::unique_ptr<kineto::ProfilerResult> result) : result_(std::move(result)) {}

  std::vector<ProfiledSpan> spans() const override {
    std::vector<ProfiledSpan> out;
    out.reserve(result_->events().size());
    for (const kineto::KinetoEvent& event : result_->events()) {
      if (event.deviceType() != c10::DeviceType::CPU || event.isHiddenEvent()) continue;
      if (event.isAsync() || event.startThreadId() != event.endThreadId()) continue;
      ProfiledSpan span{.name = event.name(),
                        .thread = event.startThreadId(),
                        .start_ns = static_cast<int64_t>(event.startNs()),
                        .end_ns = static_cast<int64_t>(event.endNs())};
      span.is_memory = span.name == kMemoryEvent;
      if (is_bookkeeping(span.name)) continue;
      if (span.is_memory) {
        span.end_ns = span.start_ns;
        span.memory_bytes = event.nBytes();
      } else {
        span.flops = static_cast<int64_t>(event.flops());
      }
      out.push_back(std::move(span));
    }
    return out;
  }

  const std::string& json(const std::string& path) override {
    if (!json_.empty()) return json_;
    static std::atomic<int> count = 0;
    const std::string hidden =
        concat(parent_directory(path), "/.accelerate-profile-", ::getpid(), "-", count++);
    system_files().create(hidden)->close();  // says why it can't be written
    result_->save(hidden);
    std::ifstream file(hidden, std::ios::binary);
    std::ostringstream text;
    if (file) text << file.rdbuf();
    file.close();
    std::error_code ignored;
    std::filesystem::remove(hidden, ignored);
    std::filesystem::remove(hidden + ".tmp", ignored);
    // Its last line.
    if (text.str().rfind(kTraceName) == std::string::npos) {
      throw CheckpointError({.what = concat("the profiler could not write all of its trace to ", hidden),
                             .hint = "Check that there is space left, or choose another folder."});
    }
    std::map<uint64_t, std::string> names;
    for (const kineto::KinetoEvent& event : result_->events()) {
      const std::string name = event.name();
      if (event.correlationId() != 0 && !is_plain(name)) names[event.correlationId()] = name;
    }
    json_ = repair_kineto_json(text.str(), path, names);
    return json_;
  }

 private:
  std::unique_ptr<kineto::ProfilerResult> result_;
  std::string json_;  // Kineto writes a trace only once
};

// `text` as JSON.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The "External id" of the event that begins at `begin`, 0 if it has none.
uint64_t external_id(const std::string& text, size_t begin) {
  static const std::string kKey = "\"External id\": ";
  const size_t end = std::min(text.find("\n  }", begin), text.size());
  const size_t key = text.find(kKey, begin);
  return key < end ? std::strtoull(text.c_str() + key + kKey.size(), nullptr, 10) : 0;
}

// One line of an event; its name ends where the next key begins. `name`: what it should be, if that is known.
std::string repair_line(const std::string& line, const std::string* name) {
  static const std::string kBegin = "\"name\": \"";
  const size_t key = line.find(kBegin);
  if (key == std::string::npos) return line;
  const size_t begin = key + kBegin.size();
  size_t end = line.rfind("\", \"pid\": ");
  if (end == std::string::npos || end < begin) end = line.rfind('"');
  if (end == std::string::npos || end < begin) return line;
  const std::string written = line.substr(begin, end - begin);
  if (name == nullptr && is_plain(written)) return line;
  return line.substr(0, key) + "\"name\": " + quoted(name == nullptr ? written : *name) +
         line.substr(end + 1);
}

}  // namespace

std::string repair_kineto_json(const std::string& text, const std::string& path,
                               const std::map<uint64_t, std::string>& names) {
  std::string out;
  out.reserve(text.size() + path.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (line.starts_with(kTraceName)) {
      out += kTraceName + quoted(path);
    } else if (line.starts_with("    \"ph\": ")) {
      const auto known = names.empty() ? names.end() : names.find(external_id(text, begin));
      out += repair_line(line, known == names.end() ? nullptr : &known->second);
    } else if (line.starts_with("      \"name\": ")) {
      out += repair_line(line, nullptr);
    } else {
      out += line;
    }
    out += '\n';
    begin = end + 1;
  }
  return out;
}

KinetoSession::KinetoSession(KinetoOptions options) : options_(std::move(options)) {
  // A profiler that was started past us shows only on its own thread.
  if (torch::profiler::impl::profilerEnabled() || taken().exchange(true)) {
    throw Error({.what = "a profiler is running already in this process",
                 .expected = "one at a time: torch's profiler is shared by all threads",
                 .hint = "Stop the other one first. Of ranks that are threads of one process, only one can "
                         "profile; ProfileOptions::all_threads shows it the operators of all."});
  }
  silence_kineto();
}

KinetoSession::~KinetoSession() {
  try {
    // What is prepared has to be started before it can be ended.
    if (state_ == State::kPrepared) start();
    if (state_ == State::kRecording) kineto::disableProfiler();
    taken() = false;
  } catch (const std::exception&) {
    // On another thread there is nothing to stop; the recording goes on, and stays the only one.
  }
}

void KinetoSession::prepare() {
  if (state_ != State::kIdle) return;
  kineto::prepareProfiler(config_of(options_), activities_of(options_));
  state_ = State::kPrepared;
}

void KinetoSession::start() {
  prepare();
  kineto::enableProfiler(config_of(options_), activities_of(options_));
  state_ = State::kRecording;
  for (const auto& [key, value] : options_.metadata) kineto::addMetadataJson(key, value);
}

std::unique_ptr<KinetoTrace> KinetoSession::stop() {
  state_ = State::kIdle;
  return std::make_unique<Trace>(kineto::disableProfiler());
}

}  // namespace accelerate::detail
