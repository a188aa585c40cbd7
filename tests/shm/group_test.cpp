// The shared-memory collectives without torch: ranks are threads, each with a mapping of its own. This is
// what runs under the thread sanitizer.
#include "accelerate/comm/shm/group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "accelerate/core/strings.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::shm;

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience{30000};

// Each rank has a mapping of its own, as processes do. The thread sanitizer sees only addresses, so that
// under it all share one.
std::shared_ptr<SharedMemoryMapping> attach(const std::string& path, size_t bytes) {
#ifdef __SANITIZE_THREAD__
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<SharedMemoryMapping>> known;
  const std::lock_guard lock(mutex);
  if (auto mapping = known[path].lock()) return mapping;
  auto mapping = std::make_shared<SharedMemoryMapping>(attach_shared_memory_writable(path, bytes));
  known[path] = mapping;
  return mapping;
#else
  return std::make_shared<SharedMemoryMapping>(attach_shared_memory_writable(path, bytes));
#endif
}

// A segment that ranks attach to.
struct Place {
  explicit Place(int size, size_t slot_bytes = 4096)
      : options{.size = size, .job_id = concat("test-", ::getpid()), .slot_bytes = slot_bytes},
        segment(options.job_id, Group::segment_bytes(options)),
        path(segment.publish()) {}

  std::unique_ptr<Group> enter(int rank) {
    GroupOptions mine = options;
    mine.rank = rank;
    mine.spin = options.size <= 2;
    return std::make_unique<Group>(attach(path, Group::segment_bytes(mine)), mine);
  }

  GroupOptions options;
  SharedMemorySegment segment;
  std::string path;
};

// Runs `body` once a rank; the first error that is no PeerError, else the first, is thrown.
void run(int size, const std::function<void(Group&)>& body, size_t slot_bytes = 4096) {
  Place place(size, slot_bytes);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = place.enter(rank);
        group->meet(kPatience);
        body(*group);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::exception_ptr secondary;
  for (const auto& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
      if (!secondary) secondary = error;
    }
  }
  if (secondary) std::rethrow_exception(secondary);
}

// Catch's assertions are not thread-safe, so ranks throw instead.
void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

int64_t value(int rank, size_t i, uint64_t salt) {
  return static_cast<int64_t>((i * 31 + static_cast<size_t>(rank) * 17 + salt * 7) % 5) - 2;
}

template <class T>
std::vector<T> values(int rank, size_t count, uint64_t salt) {
  std::vector<T> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<T>(value(rank, i, salt));
  return out;
}

template <class T>
T reduced(Reduction reduction, int size, size_t i, uint64_t salt) {
  T out = static_cast<T>(value(0, i, salt));
  for (int rank = 1; rank < size; ++rank) {
    const T next = static_cast<T>(value(rank, i, salt));
    if (reduction == Reduction::kSum || reduction == Reduction::kAverage) out = static_cast<T>(out + next);
    if (reduction == Reduction::kProduct) out = static_cast<T>(out * next);
    if (reduction == Reduction::kMin) out = std::min(out, next);
    if (reduction == Reduction::kMax) out = std::max(out, next);
    if constexpr (std::is_integral_v<T>) {
      if (reduction == Reduction::kAnd) out = static_cast<T>(out & next);
      if (reduction == Reduction::kOr) out = static_cast<T>(out | next);
      if (reduction == Reduction::kXor) out = static_cast<T>(out ^ next);
    }
  }
  return reduction == Reduction::kAverage ? static_cast<T>(out / static_cast<T>(size)) : out;
}

template <class T>
void check_type(Group& group, Element element, size_t count, uint64_t salt) {
  for (const Reduction reduction :
       {Reduction::kSum, Reduction::kAverage, Reduction::kProduct, Reduction::kMin, Reduction::kMax,
        Reduction::kAnd, Reduction::kOr, Reduction::kXor}) {
    if (!can_reduce(element, reduction)) continue;
    std::vector<T> data = values<T>(group.rank(), count, salt);
    group.all_reduce(data.data(), count, element, reduction, kPatience);
    for (size_t i = 0; i < count; ++i) {
      const T want = reduced<T>(reduction, group.size(), i, salt);
      if (data[i] == want) continue;
      throw std::runtime_error(concat(name(element), " by ", name(reduction), " of ", count, " at ", i));
    }
  }
}

}  // namespace

TEST_CASE("all_reduce equals the formula for every type and operation, 1 to 8 ranks, any size") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    run(size, [](Group& group) {
      for (const size_t count : {0, 1, 63, 64, 65, 1023, 1025, 5000, 20011}) {
        check_type<float>(group, Element::kFloat, count, 1);
        check_type<double>(group, Element::kDouble, count, 2);
        check_type<int8_t>(group, Element::kInt8, count, 3);
        check_type<uint8_t>(group, Element::kUint8, count, 4);
        check_type<int16_t>(group, Element::kInt16, count, 5);
        check_type<int32_t>(group, Element::kInt32, count, 6);
        check_type<int64_t>(group, Element::kInt64, count, 7);
      }
    });
  }
}

TEST_CASE("half and bfloat16 round once, to nearest, ties to even") {
  // Every half is the float that the definition gives, and comes back from it.
  const auto half_value = [](uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const double fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    }
    return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
  };
  const auto sum = [](Element element, uint16_t a, uint16_t b) {
    uint16_t out = 0;
    const void* inputs[] = {&a, &b};
    void* outputs[] = {&out};
    reduce(element, Reduction::kSum, inputs, outputs, 1);
    return out;
  };
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t got = sum(Element::kHalf, half, 0x8000);  // plus minus zero
    if (std::isnan(half_value(half))) {
      REQUIRE(std::isnan(half_value(got)));
    } else {
      REQUIRE(got == half);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto a = static_cast<uint16_t>(random());
    const auto b = static_cast<uint16_t>(random());
    const double exact = static_cast<float>(half_value(a)) + static_cast<float>(half_value(b));
    const uint16_t got = sum(Element::kHalf, a, b);
    if (std::isnan(exact)) {
      REQUIRE(std::isnan(half_value(got)));
      continue;
    }
    // No neighbour is nearer; between two equally near ones the last bit is 0.
    const double error = std::abs(half_value(got) - exact);
    if (std::isinf(half_value(got))) {
      REQUIRE(std::abs(exact) >= 65520);
      continue;
    }
    for (const int step : {-1, 1}) {
      const double neighbour = half_value(static_cast<uint16_t>(got + step));
      if (std::isnan(neighbour) || std::isinf(neighbour)) continue;
      const double other = std::abs(neighbour - exact);
      REQUIRE((error < other || (error == other && ((got & 1) == 0 || half_value(got) == neighbour))));
    }
  }
  const auto bf16 = [](float f) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16); };
  CHECK(sum(Element::kBFloat16, bf16(1.0F), bf16(0x1p-8F)) == bf16(1.0F));             // a tie, to even
  CHECK(sum(Element::kBFloat16, bf16(1.0078125F), bf16(0x1p-8F)) == bf16(1.015625F));  // a tie, to even
  CHECK(sum(Element::kBFloat16, bf16(3e38F), bf16(3e38F)) == 0x7f80);                  // infinity
  CHECK(sum(Element::kBFloat16, 0x7f80, 0xff80) == 0x7fc0);                            // inf - inf
}

TEST_CASE("a minimum or maximum with a NaN is NaN wherever it stands") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int at = 0; at < 3; ++at) {
    for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
      float in[3] = {1, 2, 3};
      in[at] = nan;
      const void* inputs[] = {&in[0], &in[1], &in[2]};
      float out = 0;
      void* outputs[] = {&out};
      reduce(Element::kFloat, reduction, inputs, outputs, 1);
      CHECK(std::isnan(out));
    }
  }
}

TEST_CASE("what moves bytes moves the right ones, for any size and root") {
  for (const int size : {1, 2, 3, 5, 8}) {
    run(size, [](Group& group) {
      const int ranks = group.size();
      const int me = group.rank();
      const auto all = static_cast<size_t>(ranks);
      for (const size_t bytes : {0, 1, 100, 4095, 4096, 4097, 30001}) {
        for (int root = 0; root < ranks; ++root) {
          const uint64_t salt = bytes + static_cast<size_t>(root);
          auto data = values<char>(me, bytes, salt);
          group.broadcast(data.data(), bytes, root, kPatience);
          expect(data == values<char>(root, bytes, salt), "broadcast");

          data = values<char>(me, bytes, salt + 1);
          std::vector<std::vector<char>> parts(all, std::vector<char>(bytes));
          std::vector<void*> outputs;
          for (auto& part : parts) outputs.push_back(part.data());
          group.gather(data.data(), outputs, bytes, root, kPatience);
          for (int peer = 0; peer < ranks && me == root; ++peer) {
            expect(parts[static_cast<size_t>(peer)] == values<char>(peer, bytes, salt + 1), "gather");
          }
          group.all_gather(data.data(), outputs, bytes, kPatience);
          for (int peer = 0; peer < ranks; ++peer) {
            expect(parts[static_cast<size_t>(peer)] == values<char>(peer, bytes, salt + 1), "all_gather");
          }
          std::vector<std::vector<char>> sources;
          std::vector<const void*> inputs;
          for (int peer = 0; peer < ranks; ++peer) {
            sources.push_back(values<char>(peer + 10 * me, bytes, salt));
          }
          for (auto& source : sources) inputs.push_back(source.data());
          group.scatter(data.data(), inputs, bytes, root, kPatience);
          expect(data == values<char>(me + 10 * root, bytes, salt), "scatter");
          group.barrier(kPatience);
        }
        // What p sends to q has a size of its own.
        const auto amount = [&](int from, int to) {
          return bytes * static_cast<size_t>(from + 2 * to) / static_cast<size_t>(3 * ranks);
        };
        std::vector<std::vector<char>> sent;
        std::vector<std::vector<char>> got;
        std::vector<const void*> inputs;
        std::vector<void*> outputs;
        std::vector<uint64_t> input_bytes;
        std::vector<uint64_t> output_bytes;
        for (int peer = 0; peer < ranks; ++peer) {
          sent.push_back(values<char>(me, amount(me, peer), static_cast<size_t>(peer)));
          got.emplace_back(amount(peer, me));
          input_bytes.push_back(sent.back().size());
          output_bytes.push_back(got.back().size());
        }
        for (int peer = 0; peer < ranks; ++peer) {
          inputs.push_back(sent[static_cast<size_t>(peer)].data());
          outputs.push_back(got[static_cast<size_t>(peer)].data());
        }
        group.all_to_all(inputs, input_bytes, outputs, output_bytes, kPatience);
        for (int peer = 0; peer < ranks; ++peer) {
          expect(
              got[static_cast<size_t>(peer)] == values<char>(peer, amount(peer, me), static_cast<size_t>(me)),
              "all_to_all");
        }
      }
    });
  }
}

TEST_CASE("reduce and reduce_scatter give each rank its own") {
  for (const int size : {1, 2, 3, 5, 8}) {
    run(size, [](Group& group) {
      for (const size_t count : {0, 1, 65, 1023, 9001}) {
        for (int root = 0; root < group.size(); ++root) {
          auto data = values<int32_t>(group.rank(), count, 3);
          group.reduce(data.data(), count, Element::kInt32, Reduction::kSum, root, kPatience);
          for (size_t i = 0; i < count; ++i) {
            const auto want = group.rank() == root ? reduced<int32_t>(Reduction::kSum, group.size(), i, 3)
                                                   : static_cast<int32_t>(value(group.rank(), i, 3));
            expect(data[i] == want, "reduce");
          }
        }
        std::vector<std::vector<double>> sources;
        std::vector<const void*> inputs;
        for (int peer = 0; peer < group.size(); ++peer) {
          sources.push_back(values<double>(group.rank(), count, static_cast<size_t>(peer)));
        }
        for (auto& source : sources) inputs.push_back(source.data());
        std::vector<double> output(count);
        group.reduce_scatter(output.data(), inputs, count, Element::kDouble, Reduction::kMax, kPatience);
        for (size_t i = 0; i < count; ++i) {
          expect(output[i] ==
                     reduced<double>(Reduction::kMax, group.size(), i, static_cast<size_t>(group.rank())),
                 "reduce_scatter");
        }
      }
    });
  }
}

TEST_CASE("data in an arena are reduced where they lie, and mixed with data that are not") {
  for (const int size : {1, 2, 3, 4}) {
    constexpr size_t kRegion = 1 << 20;
    SharedMemorySegment memory(concat("test-", ::getpid()), kRegion * static_cast<size_t>(size));
    const std::string path = memory.publish();
    run(size, [&, size](Group& group) {
      std::string problem;
      const auto made = group.make_arena(100, &problem, kPatience);
      expect(made != nullptr && made->region_bytes() == 4096, problem);
      auto arena = group.adopt_arena(attach(path, kRegion * static_cast<size_t>(size)), kRegion);
      expect(arena != nullptr, problem);
      constexpr size_t kCount = 30007;
      auto* inside = static_cast<float*>(arena->allocate(kCount * sizeof(float)));
      if (group.rank() == 1) inside = static_cast<float*>(arena->allocate(kCount * sizeof(float)));
      auto* second = static_cast<float*>(arena->allocate(kCount * sizeof(float)));
      std::vector<float> outside(kCount);
      for (uint64_t round = 0; round < 12; ++round) {
        float* data = round % 3 == 2 && group.rank() == 0 ? outside.data() : round % 2 == 0 ? inside : second;
        const auto mine = values<float>(group.rank(), kCount, round);
        std::copy(mine.begin(), mine.end(), data);
        group.all_reduce(data, kCount, Element::kFloat, Reduction::kSum, kPatience);
        for (size_t i = 0; i < kCount; ++i) {
          expect(data[i] == reduced<float>(Reduction::kSum, group.size(), i, round), "arena");
        }
      }
      expect(arena->allocate(1 << 21) == nullptr, "more than there is");
    });
  }
}

TEST_CASE("a random series of operations, the same on all ranks, on two groups in turn") {
  Place first(3);
  Place second(3, 8192);
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto a = first.enter(rank);
        const auto b = second.enter((rank + 1) % 3);
        a->meet(kPatience);
        b->meet(kPatience);
        std::mt19937 random(7);
        for (int step = 0; step < 400; ++step) {
          Group& group = random() % 2 == 0 ? *a : *b;
          const size_t count = random() % 3000;
          if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rank * 50));
          const auto root = static_cast<int>(random() % 3);
          if (random() % 3 == 0) {
            auto data = values<int64_t>(group.rank(), count, count);
            group.broadcast(data.data(), count * 8, root, kPatience);
            expect(data == values<int64_t>(root, count, count), "broadcast");
          } else {
            check_type<int32_t>(group, Element::kInt32, count, count);
          }
        }
        ++good;
      } catch (const std::exception& error) {
        std::printf("rank %d: %s\n", rank, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 3);
}

TEST_CASE("ranks that disagree all learn who wants what, and can go on") {
  std::mutex mutex;
  std::vector<std::string> messages;
  run(3, [&](Group& group) {
    std::vector<float> data(10);
    try {
      if (group.rank() == 2) {
        group.barrier(kPatience);
      } else {
        group.all_reduce(data.data(), group.rank() == 0 ? 10 : 9, Element::kFloat, Reduction::kSum,
                         kPatience);
      }
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.text().what);
    }
    group.barrier(kPatience);
  });
  REQUIRE(messages.size() == 3);
  for (const std::string& message : messages) {
    CHECK_THAT(message,
               ContainsSubstring("rank 0: all_reduce of 10 float by sum; rank 1: all_reduce of 9 float "
                                 "by sum; rank 2: barrier"));
  }
}

TEST_CASE("a rank that left and a rank that does not come are named") {
  std::string message;
  const auto failing = [&](int size, int busy, milliseconds timeout) {
    std::atomic<bool> done = false;
    run(size, [&](Group& group) {
      group.barrier(kPatience);
      if (group.rank() == 1) return;
      if (group.rank() == busy) {
        while (!done) std::this_thread::sleep_for(milliseconds(1));
        return;
      }
      try {
        int64_t one = 1;
        group.all_reduce(&one, 1, Element::kInt64, Reduction::kSum, timeout);
      } catch (const PeerError& error) {
        message = error.what();
      }
      CHECK_THROWS_AS(group.barrier(timeout), PeerError);
      done = true;
    });
  };
  const auto start = std::chrono::steady_clock::now();
  failing(2, -1, kPatience);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK_THAT(message,
             ContainsSubstring("rank 0: all_reduce over shared memory: rank 1 did not come (rank 1 left "
                               "after 1 operations)"));
  failing(3, 2, kPatience);
  CHECK_THAT(message, ContainsSubstring("ranks 1 and 2 did not come (rank 1 left after 1 operations)"));

  std::atomic<bool> done = false;
  run(2, [&](Group& group) {
    if (group.rank() == 1) {
      while (!done) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    try {
      group.barrier(milliseconds(200));
    } catch (const PeerError& error) {
      message = error.what();
    }
    done = true;
  });
  CHECK_THAT(message,
             ContainsSubstring("barrier over shared memory: rank 1 did not come (not within 0.2 s)"));
}

TEST_CASE("a killed process is named within a fraction of the timeout") {
  Place place(2);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto group = place.enter(1);
    group->meet(kPatience);
    group->barrier(kPatience);
    for (;;) ::pause();
  }
  const auto group = place.enter(0);
  group->meet(kPatience);
  group->barrier(kPatience);
  ::kill(child, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(group->barrier(kPatience),
                    ContainsSubstring(concat("rank 1 is gone: its process ", child, " has ended")));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  ::waitpid(child, nullptr, 0);
}
