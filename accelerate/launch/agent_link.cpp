#include "accelerate/launch/agent_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "accelerate/core/child_process.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/launch/net_address.h"
#include "accelerate/launch/report.h"

namespace accelerate::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetryInterval{250};
constexpr milliseconds kConnectAttempt{5000};
constexpr milliseconds kStatusInterval{10000};
constexpr milliseconds kFarewell{1000};
constexpr int kLaunchCode = static_cast<int>(ExitCode::kLaunchError);
constexpr int kLostCode = static_cast<int>(ExitCode::kCommError);

void ring(const UniqueFd& fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd.get(), &one, sizeof one);
}

void quiet(const UniqueFd& fd) {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd.get(), &count, sizeof count);
}

UniqueFd make_bell() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd)
    throw LaunchError({.what = concat("eventfd: ", errno_text(errno)), .hint = descriptor_hint(errno)});
  return fd;
}

}  // namespace

AgentLink::AgentLink(AgentOptions options)
    : options_(std::move(options)),
      news_(make_bell()),
      wake_(make_bell()),
      connect_until_(Clock::now() + options_.connect_timeout),
      next_status_(Clock::now() + kStatusInterval),
      thread_([this] { run(); }) {}

AgentLink::~AgentLink() {
  leave_ = true;
  ring(wake_);
  thread_.join();
}

std::optional<MachineMessage> AgentLink::next() {
  const std::lock_guard lock(mutex_);
  if (inbox_.empty()) {
    quiet(news_);
    return std::nullopt;
  }
  MachineMessage out = std::move(inbox_.front());
  inbox_.pop_front();
  return out;
}

void AgentLink::send(const MachineMessage& message) {
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back(message);
  }
  ring(wake_);
}

void AgentLink::post(MachineMessage message) {
  const std::lock_guard lock(mutex_);
  inbox_.push_back(std::move(message));
  ring(news_);
}

void AgentLink::post_status(std::string text) {
  MachineMessage status{.type = MessageType::kStatus};
  status.text = std::move(text);
  post(std::move(status));
}

void AgentLink::post_end(int code, std::string text) {
  MachineMessage end{.type = MessageType::kEnd};
  end.code = code;
  end.text = std::move(text);
  post(std::move(end));
}

std::string AgentLink::coordinator_name() const {
  const std::string where = concat(options_.address, ":", options_.port);
  return coordinator_host_.empty() ? where : concat("machine 0 (host ", coordinator_host_, ", ", where, ")");
}

void AgentLink::run() {
  try {
    while (!leave_) {
      UniqueFd fd = connect();
      if (!fd) return;
      LineSocket socket(std::move(fd));
      if (talk(socket)) return;
      pause(kRetryInterval);
    }
  } catch (const std::exception& error) {
    post_end(kLaunchCode, error.what());
  }
}

// Empty when told to leave, or when time is up, which is posted.
UniqueFd AgentLink::connect() {
  std::string reason;
  while (!leave_) {
    std::string error_text;
    for (const NetAddress& address : resolve(options_.address, options_.port, error_text)) {
      const auto left = std::chrono::ceil<milliseconds>(connect_until_ - Clock::now());
      const auto limit = std::clamp(left, milliseconds(0), kConnectAttempt);
      int error = 0;
      UniqueFd fd = connect_to(address, static_cast<int>(limit.count()), wake_.get(), error);
      if (fd) return fd;
      if (error != 0) error_text = errno_text(error);
    }
    if (!error_text.empty()) reason = error_text;
    const auto now = Clock::now();
    if (now >= connect_until_) {
      post_end(kLaunchCode,
               concat("can't reach machine 0 at ", coordinator_name(), " after ",
                      seconds_text(options_.connect_timeout), " (", reason,
                      "). Check --main_process_ip and --main_process_port, that the launcher of machine 0 "
                      "runs, and that no firewall is between."));
      return {};
    }
    if (now >= next_status_) {
      next_status_ = now + kStatusInterval;
      const auto left = std::chrono::duration_cast<std::chrono::seconds>(connect_until_ - now);
      post_status(concat("can't reach machine 0 at ", coordinator_name(), " yet (", reason,
                         "); trying for another ", left.count(), " s"));
    }
    pause(kRetryInterval);
  }
  return {};
}

void AgentLink::pause(milliseconds duration) {
  const Deadline deadline = Deadline::after(duration);
  while (!leave_ && !deadline.expired()) {
    pollfd item{wake_.get(), POLLIN, 0};
    if (::poll(&item, 1, deadline.poll_timeout_ms()) > 0) quiet(wake_);
  }
}

void AgentLink::send_queued(LineSocket& socket) {
  const std::lock_guard lock(mutex_);
  for (const MachineMessage& message : outbox_) socket.send(encode(message));
  outbox_.clear();
}

void AgentLink::farewell(LineSocket& socket) {
  send_queued(socket);
  const Deadline deadline = Deadline::after(kFarewell);
  while (socket.flush() && !socket.all_sent() && !deadline.expired()) {
    pollfd item{socket.fd(), POLLOUT, 0};
    ::poll(&item, 1, deadline.poll_timeout_ms());
  }
  socket.end_sending();
}

// True when there is nothing more to wait for.
bool AgentLink::handle(const MachineMessage& message) {
  switch (message.type) {
    case MessageType::kBeat:
      return false;
    case MessageType::kWelcome:
      coordinator_host_ = message.host;
      options_.heartbeat_timeout = milliseconds(std::max<int64_t>(10, message.heartbeat_ms));
      return false;
    case MessageType::kRefused:
      post_end(message.code != 0 ? static_cast<int>(message.code) : kLaunchCode, message.text);
      return true;
    default:
      post(message);
      return message.type == MessageType::kEnd;
  }
}

// Speaks with the coordinator until either side ends it. False when it hung up before it knew us, which may
// pass: the launcher of an earlier job on its way out.
bool AgentLink::talk(LineSocket& socket) {
  coordinator_host_.clear();
  socket.send(encode(options_.hello));
  auto last_heard = Clock::now();
  auto next_beat = last_heard;
  while (true) {
    if (leave_) {
      farewell(socket);
      return true;
    }
    send_queued(socket);
    const auto interval = options_.heartbeat_timeout / 5;
    if (Clock::now() >= next_beat && !coordinator_host_.empty()) {
      socket.send(encode({.type = MessageType::kBeat}));
      next_beat = Clock::now() + interval;
    }
    bool open = socket.flush();
    pollfd items[2] = {{socket.fd(), socket.events(), 0}, {wake_.get(), POLLIN, 0}};
    if (open) ::poll(items, 2, static_cast<int>(std::max<int64_t>(1, interval.count())));
    if (items[1].revents != 0) quiet(wake_);
    std::vector<std::string> lines;
    if (open && items[0].revents != 0) open = socket.receive(lines);
    for (const std::string& line : lines) {
      const auto message = decode(line);
      if (!message) {
        post_end(kLaunchCode, concat("what answers at ", coordinator_name(), " is no accel launcher"));
        return true;
      }
      last_heard = Clock::now();
      if (handle(*message)) return true;
    }
    if (!open && coordinator_host_.empty()) return false;
    if (!open) {
      post_end(kLostCode, concat(coordinator_name(), " is lost: ", socket.reason()));
      return true;
    }
    if (Clock::now() - last_heard >= options_.heartbeat_timeout) {
      post_end(kLostCode, concat(coordinator_name(), " is lost: nothing heard for ",
                                 seconds_text(options_.heartbeat_timeout)));
      return true;
    }
  }
}

}  // namespace accelerate::detail
