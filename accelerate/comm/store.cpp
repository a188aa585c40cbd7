#include "accelerate/comm/store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

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
  try {
    store_->wait({key}, timeout);
  } catch (const std::exception&) {
    // A wait that ran out and a store that is gone look alike here; the second throws again below.
    if (!store_->check({key})) return std::nullopt;
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
