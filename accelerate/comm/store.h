#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace accelerate {

/// The key-value store that the ranks of a job share: small values, set once, waited for. Held by one rank
/// (or by the launcher) and reached over TCP; in tests it lives in memory. Calls are thread-safe; each is one
/// round trip.
class Store {
 public:
  explicit Store(c10::intrusive_ptr<c10d::Store> store);
  ~Store();
  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;

  /// Another handle on the same store.
  Store share() const;

  void set(const std::string& key, const std::string& value);
  /// The value, or nothing if the key did not appear within `timeout`. Looks again and again, at most 20 ms
  /// apart: a wait inside torch's store that runs out prints warnings of its own.
  std::optional<std::string> get(const std::string& key, std::chrono::milliseconds timeout);
  /// True if the key is there now.
  bool has(const std::string& key);
  /// Forgets a key; one that is not there is no error.
  void remove(const std::string& key);
  /// Adds to a counter that starts at 0 and returns the new value.
  int64_t add(const std::string& key, int64_t amount);

  /// For the comm folder: the store as c10d sees it.
  const c10::intrusive_ptr<c10d::Store>& c10d_store() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate
