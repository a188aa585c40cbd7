#include "accelerate/comm/store.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/core/deadline.h"

namespace accelerate {
namespace {

// torch's store prints a warning with a stack trace when the process that serves it is gone, as the last rank
// of a healthy job may see. Our errors say what matters; warnings of other threads are held back for the
// length of one round trip.
class QuietStore {
 public:
  QuietStore() : level_(FLAGS_caffe2_log_level), before_(level_.load()) {
    if (before_ < kErrors) level_.store(kErrors);
  }
  ~QuietStore() {
    if (before_ < kErrors) level_.store(before_);
  }
  QuietStore(const QuietStore&) = delete;
  QuietStore& operator=(const QuietStore&) = delete;

 private:
  static constexpr int kErrors = 2;
  std::atomic_ref<int> level_;
  int before_;
};

}  // namespace

Store::Store(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
Store::~Store() = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;

Store Store::share() const {
  return Store(store_);
}

void Store::set(const std::string& key, const std::string& value) {
  const QuietStore quiet;
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

std::optional<std::string> Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (auto pause = std::chrono::microseconds(100); !has(key);
       pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20))) {
    if (deadline.expired()) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
  const QuietStore quiet;
  const std::vector<uint8_t> value = store_->get(key);
  return std::string(value.begin(), value.end());
}

bool Store::has(const std::string& key) {
  const QuietStore quiet;
  return store_->check({key});
}

void Store::remove(const std::string& key) {
  const QuietStore quiet;
  store_->deleteKey(key);
}

int64_t Store::add(const std::string& key, int64_t amount) {
  const QuietStore quiet;
  return store_->add(key, amount);
}

}  // namespace accelerate
