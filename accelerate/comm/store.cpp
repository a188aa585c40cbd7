#include "accelerate/comm/store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/core/deadline.h"

namespace accelerate {

Store::Store(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
Store::~Store() = default;
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;

Store Store::share() const {
  return Store(store_);
}

void Store::set(const std::string& key, const std::string& value) {
  store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

std::optional<std::string> Store::get(const std::string& key, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (auto pause = std::chrono::microseconds(100); !store_->check({key});
       pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20))) {
    if (deadline.expired()) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
  const std::vector<uint8_t> value = store_->get(key);
  return std::string(value.begin(), value.end());
}

bool Store::has(const std::string& key) {
  return store_->check({key});
}

int64_t Store::add(const std::string& key, int64_t amount) {
  return store_->add(key, amount);
}

}  // namespace accelerate
