#include "accelerate/tracking/memory_usage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/mman.h>

#include <cstring>

#include "tracking_test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

constexpr int64_t kMiB = 1 << 20;
// The kernel's counters lag behind, and other parts of the program come and go.
constexpr int64_t kSlack = 8 * kMiB;

// Memory that is there for as long as it lives, page by page.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap");
    std::memset(data_, 1, bytes_);
  }
  ~Pages() { ::munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

 private:
  size_t bytes_;
  void* data_;
};

bool near(const std::optional<int64_t>& bytes, int64_t expected) {
  return bytes && *bytes >= expected - kSlack && *bytes <= expected + kSlack;
}

// An allocator with statistics that the test sets, in the place of a device's.
class CountingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return {}; }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return ready; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    asked = device;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes})
      (*bytes)[0].peak = (*bytes)[0].current;
  }

  void take(int64_t bytes) {
    for (auto* part : {&stats.allocated_bytes, &stats.reserved_bytes}) {
      (*part)[0].current += bytes;
      (*part)[0].peak = std::max((*part)[0].peak, (*part)[0].current);
    }
  }
  void give_back(int64_t bytes) { stats.allocated_bytes[0].current -= bytes; }

  bool ready = false;
  c10::DeviceIndex asked = -1;
  c10::CachingDeviceAllocator::DeviceStats stats;
};

}  // namespace

TEST_CASE("resident memory follows what is touched, and the peak stays") {
  const MemoryUsage before = memory_usage();
  CHECK(before.host_rss_bytes > kMiB);
  CHECK(before.host_peak_rss_bytes >= before.host_rss_bytes);
  CHECK_FALSE(before.host_pss_bytes);
  CHECK_FALSE(before.device);
  {
    const Pages pages(48 * kMiB);
    const MemoryUsage within = memory_usage(at::kCPU, {.pss = true});
    CHECK(near(within.host_rss_bytes - before.host_rss_bytes, 48 * kMiB));
    REQUIRE(within.host_pss_bytes);
    CHECK(*within.host_pss_bytes > 48 * kMiB);
    CHECK(*within.host_pss_bytes <= within.host_rss_bytes + kSlack);
  }
  const MemoryUsage after = memory_usage();
  CHECK(near(after.host_rss_bytes, before.host_rss_bytes));
  CHECK(after.host_peak_rss_bytes >= before.host_rss_bytes + 48 * kMiB - kSlack);
}

TEST_CASE("a scope's peak is above its begin, and scopes within leave those around them their peaks") {
  const Pages always(32 * kMiB);
  std::optional<PeakMemoryScope> outer(std::in_place);
  { const Pages pages(96 * kMiB); }
  const int64_t lifetime = memory_usage().host_peak_rss_bytes;
  {
    const PeakMemoryScope inner;
    { const Pages pages(48 * kMiB); }
    const auto peak = inner.peak().host_rss_bytes;
    // Where the kernel keeps no peak of the scope's own, the older one hides this one: then it says nothing.
    INFO((peak ? *peak : -1));
    CHECK((!peak || near(peak, 48 * kMiB)));
    CHECK_FALSE(inner.peak().device_allocated_bytes);
  }
  CHECK(near(outer->peak().host_rss_bytes, 96 * kMiB));
  CHECK(memory_usage().host_peak_rss_bytes >= lifetime);
  { const Pages pages(128 * kMiB); }
  CHECK(near(outer->peak().host_rss_bytes, 128 * kMiB));
}

TEST_CASE("a device's allocator is asked for its numbers, index by index") {
  static CountingAllocator allocator;
  c10::SetAllocator(c10::kPrivateUse1, &allocator, /*priority=*/10);
  const at::Device device(at::kPrivateUse1, 2);
  CHECK_FALSE(memory_usage(device).device);  // not used yet
  allocator.ready = true;
  allocator.take(500);
  allocator.give_back(400);
  const auto usage = memory_usage(device).device;
  REQUIRE(usage);
  CHECK(allocator.asked == 2);
  CHECK(usage->allocated_bytes == 100);
  CHECK(usage->peak_allocated_bytes == 500);
  CHECK(usage->reserved_bytes == 500);
  CHECK(usage->peak_reserved_bytes == 500);

  const PeakMemoryScope outer(device);
  allocator.take(200);
  allocator.give_back(200);
  {
    const PeakMemoryScope inner(device);
    allocator.take(50);
    allocator.give_back(50);
    CHECK(inner.peak().device_allocated_bytes == 50);
  }
  CHECK(outer.peak().device_allocated_bytes == 200);
  CHECK(memory_usage(device).device->peak_allocated_bytes == 500);
  allocator.ready = false;
}
