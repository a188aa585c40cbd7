// Messages between ranks without torch; for the thread sanitizer, all ranks share one mapping.
#include "accelerate/comm/shm/mailbox.h"

#include <future>
#include <random>
#include <thread>

#include "accelerate/core/strings.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::shm;

namespace {

constexpr std::chrono::milliseconds kPatience{30000};

std::vector<unsigned char> content(int from, int to, int tag, size_t bytes) {
  std::vector<unsigned char> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<unsigned char>(i * 7 + static_cast<size_t>(from * 31 + to * 5 + tag));
  }
  return out;
}

struct Pending {
  std::vector<unsigned char> data;
  std::vector<unsigned char> want;
  std::promise<int> source;
};

Mailbox::Done into(Pending& pending) {
  return [&pending](const std::exception_ptr& error, int source) {
    if (error) {
      pending.source.set_exception(error);
    } else {
      pending.source.set_value(source);
    }
  };
}

}  // namespace

TEST_CASE("every rank sends to every other at once, in any order of tags, while collectives run") {
  for (const int size : {2, 3, 4}) {
    const GroupOptions base{.size = size, .job_id = concat("mail-", ::getpid()), .slot_bytes = 4096};
    const SharedMemorySegment segment(base.job_id, Group::segment_bytes(base));
    const auto mapping = std::make_shared<SharedMemoryMapping>(segment.map_writable());
    std::vector<std::string> errors(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          GroupOptions options = base;
          options.rank = rank;
          Group group(mapping, options);
          group.meet(kPatience);
          std::list<Pending> pending;
          Mailbox mailbox(group);
          std::mt19937 random(static_cast<unsigned>(rank));
          for (int round = 0; round < 20; ++round) {
            const size_t bytes = round == 5 ? 300000 : static_cast<size_t>(round * 997 % 5000);
            for (int tag = 0; tag < 3; ++tag) {
              for (int peer = 0; peer < size; ++peer) {
                if (peer == rank) continue;
                Pending& out = pending.emplace_back();
                out.data = content(rank, peer, tag + round, bytes);
                out.want = out.data;
                mailbox.send(out.data.data(), bytes, peer, tag, kPatience, into(out));
                Pending& in = pending.emplace_back();
                const int from_tag = 2 - tag;
                in.data.resize(bytes);
                in.want = content(peer, rank, from_tag + round, bytes);
                mailbox.receive(in.data.data(), bytes, peer, from_tag, kPatience, into(in));
              }
            }
            if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
            int64_t one = 1;
            group.all_reduce(&one, 1, Element::kInt64, Reduction::kSum, kPatience);
            if (one != size) throw std::runtime_error("sum");
          }
          for (Pending& each : pending) {
            each.source.get_future().get();
            if (each.data != each.want) throw std::runtime_error("wrong bytes");
          }
          group.barrier(kPatience);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) CHECK(error.empty());
  }
}
