#include "accelerate/launch/coordinator_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;

// A connection that does not say who it is.
constexpr milliseconds kHelloTimeout{5000};
// From the last message to closing in the peer's face.
constexpr milliseconds kCloseTimeout{2000};
constexpr size_t kMaxConnections = 4096;

}  // namespace

CoordinatorServer::CoordinatorServer(UniqueFd listener, CoordinatorOptions options)
    : listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      coordinator_(
          [&] {
            options.open_store = [this](int attempt) { return open_store(attempt); };
            return std::move(options);
          }(),
          Clock::now()),
      thread_([this] { serve(); }) {}

CoordinatorServer::~CoordinatorServer() {
  leave_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

UniqueFd CoordinatorServer::take_store_socket(int attempt) {
  const std::lock_guard lock(mutex_);
  const auto found = stores_.find(attempt);
  if (found == stores_.end()) return {};
  UniqueFd out = std::move(found->second);
  stores_.erase(found);
  return out;
}

int CoordinatorServer::open_store(int attempt) {
  NetAddress address = local_address(listener_.get());
  address.set_port(0);
  int error = 0;
  UniqueFd fd = listen_at(address, error);
  if (!fd)
    throw LaunchError(
        {.what = concat("no port for the store: ", errno_text(error)), .hint = descriptor_hint(error)});
  const int port = local_address(fd.get()).port();
  const std::lock_guard lock(mutex_);
  stores_.clear();
  stores_[attempt] = std::move(fd);
  return port;
}

void CoordinatorServer::serve() {
  try {
    while (!(coordinator_.finished() && peers_.empty())) turn();
  } catch (const std::exception&) {
    // Out of memory or descriptors. The agents, ours among them, see their connections end and say so.
  }
  peers_.clear();
  listener_.reset();
}

void CoordinatorServer::turn() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0},
                                {coordinator_.finished() ? -1 : listener_.get(), POLLIN, 0}};
  std::vector<Coordinator::Connection> ids;
  for (const auto& [id, peer] : peers_) {
    polled.push_back({peer.socket.fd(), peer.socket.events(), 0});
    ids.push_back(id);
  }
  ::poll(polled.data(), polled.size(), timeout_ms());
  if (polled[1].revents != 0) accept_all();
  // What was sent counts before the clock does: this process may have been stopped for a while.
  for (size_t i = 0; i < ids.size(); ++i) {
    if (polled[i + 2].revents != 0) read_from(ids[i], peers_.at(ids[i]));
  }
  if (leave_) coordinator_.abandon(concat("the launcher of the coordinator's machine has ended"));
  coordinator_.tick(Clock::now());
  deliver();
  close_ended();
}

int CoordinatorServer::timeout_ms() const {
  Clock::time_point next = Clock::now() + kCloseTimeout;
  if (!coordinator_.finished()) next = std::min(next, coordinator_.next_tick());
  for (const auto& [id, peer] : peers_) {
    if (peer.closing) next = std::min(next, peer.close_at);
    if (!coordinator_.is_member(id)) next = std::min(next, std::max(peer.hello_until, peer.close_at));
  }
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kCloseTimeout.count()));
}

void CoordinatorServer::accept_all() {
  while (peers_.size() < kMaxConnections) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    std::string reached_at = local_address(fd.get()).host();
    peers_.emplace(next_id_++, Peer{.socket = LineSocket(std::move(fd)),
                                    .reached_at = std::move(reached_at),
                                    .hello_until = Clock::now() + kHelloTimeout});
  }
}

void CoordinatorServer::read_from(Coordinator::Connection id, Peer& peer) {
  std::vector<std::string> lines;
  const bool open = peer.socket.receive(lines);
  for (const std::string& line : lines) {
    if (peer.closing) break;
    // What is no message gets the answer of one that does not belong here.
    const auto message = decode(line);
    if (message) {
      coordinator_.received(id, *message, peer.reached_at, Clock::now());
    } else if (coordinator_.is_member(id)) {
      coordinator_.gone(id, "it sent something that is no message", Clock::now());
      peer.broken = true;
    } else {
      coordinator_.received(id, {}, peer.reached_at, Clock::now());
    }
    deliver();
  }
  if (!open) {
    peer.broken = true;
    coordinator_.gone(id, peer.socket.reason(), Clock::now());
  }
}

void CoordinatorServer::deliver() {
  for (const Coordinator::Outgoing& item : coordinator_.take_outgoing()) {
    const auto found = peers_.find(item.connection);
    if (found == peers_.end() || found->second.closing) continue;
    Peer& peer = found->second;
    if (item.message) peer.socket.send(encode(*item.message));
    if (item.close) {
      peer.closing = true;
      // Who was silent for long will hardly read now.
      peer.close_at = Clock::now() + (item.linger ? kCloseTimeout : milliseconds(0));
    }
  }
}

void CoordinatorServer::close_ended() {
  const auto now = Clock::now();
  for (auto at = peers_.begin(); at != peers_.end();) {
    auto& [id, peer] = *at;
    if (!peer.broken && !peer.socket.flush()) {
      peer.broken = true;
      coordinator_.gone(id, peer.socket.reason(), now);
    }
    // Closing at once would throw away what the peer has not read yet if it has just sent something.
    if (peer.closing && !peer.half_closed && peer.socket.all_sent()) {
      peer.socket.end_sending();
      peer.half_closed = true;
    }
    const bool mute = !peer.closing && !coordinator_.is_member(id) && now >= peer.hello_until;
    const bool late = peer.closing && now >= peer.close_at;
    const bool stranger_at_end = coordinator_.finished() && !coordinator_.is_member(id);
    at = peer.broken || mute || late || stranger_at_end ? peers_.erase(at) : std::next(at);
  }
}

}  // namespace accelerate::detail
