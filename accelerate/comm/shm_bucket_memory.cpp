#include "accelerate/comm/shm_bucket_memory.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <mutex>

namespace accelerate::detail {
namespace {

thread_local std::shared_ptr<shm::Arena> current_arena;

void release_arena(void* context) {
  delete static_cast<std::shared_ptr<shm::Arena>*>(context);
}

class ArenaAllocator final : public c10::Allocator {
 public:
  /// One for the process, never destroyed: storages keep a pointer to the allocator that made them.
  static ArenaAllocator& instance() {
    static auto* allocator = new ArenaAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (current_arena != nullptr) {
      if (void* data = current_arena->allocate(bytes)) {
        return {data, new std::shared_ptr<shm::Arena>(current_arena), &release_arena, c10::DeviceType::CPU};
      }
    }
    return ordinary()->allocate(bytes);
  }

  // Of what is no tensor in an arena.
  c10::DeleterFnPtr raw_deleter() const override { return ordinary()->raw_deleter(); }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  void install() {
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
    ordinary_.store(c10::GetAllocator(c10::DeviceType::CPU), std::memory_order_release);
    c10::SetAllocator(c10::DeviceType::CPU, this, /*priority=*/0);
  }

  void uninstall() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    if (c10::GetAllocator(c10::DeviceType::CPU) == this) {
      c10::SetAllocator(c10::DeviceType::CPU, ordinary(), /*priority=*/0);
    }
  }

 private:
  c10::Allocator* ordinary() const { return ordinary_.load(std::memory_order_acquire); }

  std::mutex mutex_;
  int users_ = 0;
  std::atomic<c10::Allocator*> ordinary_ = nullptr;
};

class ArenaInUse final : public BucketMemory {
 public:
  explicit ArenaInUse(std::shared_ptr<shm::Arena> arena) {
    ArenaAllocator::instance().install();
    previous_ = std::exchange(current_arena, std::move(arena));
  }
  ~ArenaInUse() override {
    current_arena = std::move(previous_);
    ArenaAllocator::instance().uninstall();
  }

 private:
  std::shared_ptr<shm::Arena> previous_;
};

}  // namespace

std::unique_ptr<BucketMemory> use_arena(std::shared_ptr<shm::Arena> arena) {
  return std::make_unique<ArenaInUse>(std::move(arena));
}

}  // namespace accelerate::detail
