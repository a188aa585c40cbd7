#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/tracking/operator_times.h"

// Note [Kineto]
// torch's profiler is Kineto: one recorder for the whole process, whoever asks. Starting it twice gives no
// error, but two traces of which one lacks most of the events; so one session at a time takes it, and the
// next one is refused. It keeps its state with the thread that starts it, which is the thread whose operators
// it sees, together with those that autograd runs for it; the same thread has to stop it. On its own it
// prints progress and, where there is no NVIDIA driver, an error to standard error; unless the variable
// KINETO_LOG_LEVEL says otherwise it is told not to, before its first use. It writes a trace once, to a path,
// says nothing to its caller when it can't, does not escape quotes in names, and writes names that are not
// plain ASCII as "unknown". So it writes to a hidden file beside the wanted one, whose text is then repaired
// and written anew.
namespace accelerate::detail {

struct KinetoOptions {
  bool cuda = false;
  bool record_shapes = false;
  bool profile_memory = false;
  bool with_stack = false;
  bool with_flops = false;
  bool with_modules = false;
  bool all_threads = false;
  /// Key and JSON text of what is added to the head of the trace.
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// What was recorded between start and stop.
class KinetoTrace {
 public:
  virtual ~KinetoTrace() = default;
  virtual std::vector<ProfiledSpan> spans() const = 0;
  /// The Chrome trace as JSON text that names `path` as its file. Uses a hidden file in the folder of `path`.
  /// @throws CheckpointError naming the hidden file if it could not be written.
  virtual const std::string& json(const std::string& path) = 0;
};

/// Kineto, taken for this session until it is destroyed. A session records once: prepare(), start(), stop().
class KinetoSession {
 public:
  /// @throws Error when the process records already.
  explicit KinetoSession(KinetoOptions options);
  /// Discards what is being recorded.
  ~KinetoSession();
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  /// Gets ready, so that start() is quick. May be left out.
  void prepare();
  void start();
  std::unique_ptr<KinetoTrace> stop();
  bool recording() const { return state_ == State::kRecording; }

 private:
  enum class State { kIdle, kPrepared, kRecording };
  KinetoOptions options_;
  State state_ = State::kIdle;
};

/// `text` as Kineto wrote it, so that it is JSON whatever the names of ranges, and names `path` as its file.
/// `names` are those that Kineto does not write as they are, by the event's "External id".
std::string repair_kineto_json(const std::string& text, const std::string& path,
                               const std::map<uint64_t, std::string>& names);

}  // namespace accelerate::detail
