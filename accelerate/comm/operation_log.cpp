#include "accelerate/comm/operation_log.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

// The log in which this thread is inside an operation.
thread_local const OperationLog* inside = nullptr;

}  // namespace

OperationLog::Scope::Scope(OperationLog& log, const char* name, const at::Tensor& tensor, int peer)
    : log_(log), outer_(inside) {
  if (inside == &log) return;
  inside = &log;
  Entry entry;
  entry.name = name;
  entry.peer = peer;
  entry.begun = Clock::now();
  if (tensor.defined()) {
    entry.dtype = tensor.scalar_type();
    if (tensor.layout() == at::kStrided || tensor.layout() == at::kSparse) {
      entry.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
    }
  }
  const std::lock_guard lock(log_.mutex_);
  log_.drop_complete();
  id_ = entry.id = log_.next_id_++;
  if (peer == kCollective) entry.number = ++log_.begun_;
  log_.running_.push_back(std::move(entry));
}

OperationLog::Scope::~Scope() {
  if (id_ == 0) return;
  inside = outer_;
  const std::lock_guard lock(log_.mutex_);
  const auto entry = std::find_if(log_.running_.begin(), log_.running_.end(),
                                  [&](const Entry& running) { return running.id == id_; });
  if (entry != log_.running_.end() && !entry->work) log_.finish(entry);
}

void OperationLog::Scope::goes_on(const c10::intrusive_ptr<c10d::Work>& work) {
  if (id_ == 0 || !work || work->isCompleted()) return;
  const std::lock_guard lock(log_.mutex_);
  if (Entry* entry = log_.find(id_)) entry->work = work;
}

std::string OperationLog::Scope::text() const {
  const std::lock_guard lock(log_.mutex_);
  const Entry* entry = log_.find(id_);
  return entry == nullptr ? std::string() : describe(*entry);
}

void OperationLog::count_backward_pass() {
  const std::lock_guard lock(mutex_);
  ++backward_passes_;
}

OperationLog::State OperationLog::state() {
  const std::lock_guard lock(mutex_);
  drop_complete();
  State state{.begun = begun_, .backward_passes = backward_passes_};
  if (last_) state.last = describe(*last_);
  state.since = Clock::now() - last_ended_;
  if (!running_.empty()) {
    state.current = describe(running_.front());
    state.current_id = running_.front().id;
    state.since = Clock::now() - running_.front().begun;
  }
  return state;
}

std::string OperationLog::describe(const Entry& entry) {
  std::string text = entry.name;
  if (entry.number > 0) text += concat(" #", entry.number);
  if (entry.peer >= 0) text += concat(" rank ", entry.peer);
  if (entry.dtype != at::ScalarType::Undefined) {
    text += concat(" of ", c10::toString(entry.dtype), " [");
    for (size_t i = 0; i < entry.sizes.size(); ++i) text += concat(i > 0 ? ", " : "", entry.sizes[i]);
    text += ']';
  }
  return text;
}

OperationLog::Entry* OperationLog::find(int64_t id) {
  for (Entry& entry : running_) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

void OperationLog::finish(std::deque<Entry>::iterator entry) {
  entry->work.reset();  // and with it the tensors
  if (!last_ || last_->id < entry->id) last_ = std::move(*entry);
  last_ended_ = Clock::now();
  running_.erase(entry);
}

void OperationLog::drop_complete() {
  for (auto entry = running_.begin(); entry != running_.end();) {
    if (entry->work && entry->work->isCompleted()) {
      finish(entry);
      entry = running_.begin();
    } else {
      ++entry;
    }
  }
}

}  // namespace accelerate::detail
