#include "accelerate/comm/mpi/engine_internal.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "accelerate/comm/shm/peers.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::mpi {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Of our own; communicators are made over MPI_COMM_WORLD, where a program may use others.
constexpr int kCreateTag = 28441;

// How much longer a rank that ends waits for the others than their collectives wait for it: what they say
// then is what tells people who has left.
constexpr milliseconds kLeaveGrace = std::chrono::seconds(5);

double seconds(milliseconds duration) {
  return static_cast<double>(duration.count()) / 1000.0;
}

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

/// @throws shm::PeerError unless the message had the length that was expected.
void check_received(int result, const MPI_Status& status, size_t expected, int* source) {
  int error_class = MPI_SUCCESS;
  if (result != MPI_SUCCESS) MPI_Error_class(result, &error_class);
  if (error_class == MPI_ERR_TRUNCATE) {
    throw shm::PeerError(
        {.what = concat("the message is longer than the ", expected, " bytes of the tensor")});
  }
  check(result, "MPI_Test");
  MPI_Count got = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &got);
  if (static_cast<size_t>(got) != expected) {
    throw shm::PeerError(
        {.what = concat("the message has ", static_cast<int64_t>(got), " bytes instead of ", expected)});
  }
  *source = status.MPI_SOURCE;
}

/// True when MPI has answered all calls.
bool test(Posted& posted) {
  bool all = true;
  for (Pending& pending : posted.pending) {
    if (pending.request == MPI_REQUEST_NULL) continue;
    int answered = 0;
    MPI_Status status;
    const int result = MPI_Test(&pending.request, &answered, &status);
    if (result == MPI_SUCCESS && answered == 0) {
      all = false;
    } else if (pending.receives) {
      check_received(result, status, *pending.receives, &posted.source);
    } else {
      check(result, "MPI_Test");
    }
  }
  return all;
}

/// Takes back receptions for which nothing has come. True if MPI has nothing to do with the operation any
/// more.
bool take_back(Posted& posted) {
  bool all = true;
  for (Pending& pending : posted.pending) {
    if (pending.request == MPI_REQUEST_NULL) continue;
    int answered = 0;
    MPI_Status status;
    if (pending.receives && MPI_Cancel(&pending.request) == MPI_SUCCESS)
      MPI_Test(&pending.request, &answered, &status);
    all = all && answered != 0;
  }
  return all;
}

/// The error with the operation before it.
std::exception_ptr with_name(const Operation& operation, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const shm::PeerError& peer) {
    const ErrorText& text = peer.text();
    return std::make_exception_ptr(shm::PeerError(
        {.what = concat(operation.name, ": ", text.what, text.got.empty() ? "" : concat(" (", text.got, ")")),
         .rank = operation.comm->rank}));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Engine& Engine::get() {
  static auto* engine = new Engine;
  return *engine;
}

void Engine::ensure_thread() {
  const std::lock_guard lock(mutex_);
  if (has_thread_) return;
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { loop(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  has_thread_ = true;
}

void Engine::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  cv_.notify_one();
}

void Engine::call(const std::function<void()>& task, const Deadline& deadline, const std::string& what) {
  if (on_thread()) return task();
  if (gone_) throw shm::PeerError({.what = concat(what, ": this process has left MPI")});
  const auto result = std::make_shared<std::promise<void>>();
  auto future = result->get_future();
  post([task, result] {
    try {
      task();
      result->set_value();
    } catch (...) {
      result->set_exception(std::current_exception());
    }
  });
  if (future.wait_for(deadline.remaining()) != std::future_status::ready) {
    clean_ = false;
    throw shm::PeerError(
        {.what = concat(what, ": not all ranks came within ", seconds(deadline.duration()), " s")});
  }
  future.get();
}

Place Engine::start(const Deadline& deadline) {
  ensure_thread();
  const auto place = std::make_shared<Place>();
  int64_t longest = longest_ms_;
  while (longest < deadline.duration().count() &&
         !longest_ms_.compare_exchange_weak(longest, deadline.duration().count())) {
  }
  call(
      [this, place] {
        initialize();
        check(MPI_Comm_rank(MPI_COMM_WORLD, &place->rank), "MPI_Comm_rank");
        check(MPI_Comm_size(MPI_COMM_WORLD, &place->size), "MPI_Comm_size");
      },
      deadline, "starting MPI");
  return *place;
}

void Engine::initialize() {
  if (is_finalized()) {
    throw ConfigError({.what = "the back end mpi",
                       .got = "a process that has called MPI_Finalize",
                       .hint = "MPI starts only once in a process: end it after the last Accelerator."});
  }
  if (initialized_) return;
  int running = 0;
  MPI_Initialized(&running);
  int provided = MPI_THREAD_SINGLE;
  if (running == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    // The program may have asked for errors that end it; ours come back to us.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    owns_ = true;
  } else {
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE) {
      throw ConfigError(
          {.what = "MPI, which the program has started itself",
           .expected = "MPI_THREAD_MULTIPLE, since a thread of ours calls it too",
           .got = concat("thread level ", provided),
           .hint = "Call MPI_Init_thread with MPI_THREAD_MULTIPLE, or leave starting MPI to us."});
    }
  }
  initialized_ = true;
  // glibc's atexit that is told the exit status.
  ::on_exit(at_exit, nullptr);
}

void Engine::open(Comm& comm, const std::vector<int>& world_ranks) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members),
        "MPI_Group_incl");
  check(MPI_Comm_create_group(MPI_COMM_WORLD, members, kCreateTag, &comm.handle), "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(comm.handle, MPI_ERRORS_RETURN);
  int* largest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &found);
  if (found != 0) comm.part_tag = *largest_tag;
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  ++groups_;
}

bool Engine::is_used(const Comm& comm) const {
  return std::any_of(active_.begin(), active_.end(),
                     [&](const auto& operation) { return operation->comm.get() == &comm; });
}

void Engine::release(Comm& comm) {
  --groups_;
  // What failed stays: MPI may be about to use it.
  if (comm.broken.empty() && !is_finalized()) MPI_Comm_free(&comm.handle);
}

void Engine::close(std::shared_ptr<Comm> comm) {
  if (is_used(*comm)) {
    closing_.push_back(std::move(comm));
  } else {
    release(*comm);
  }
}

void Engine::finish(Operation& operation, const std::exception_ptr& error) {
  last_event_ = Clock::now();
  operation.done(error, operation.posted.source);
}

void Engine::begin(std::shared_ptr<Operation> operation) {
  last_event_ = Clock::now();
  Comm& comm = *operation->comm;
  operation->posted.comm = &comm;
  if (!comm.broken.empty()) {
    const auto error = std::make_exception_ptr(
        shm::PeerError({.what = concat(operation->name, ": the group is of no use since ", comm.broken),
                        .rank = comm.rank}));
    return finish(*operation, error);
  }
  try {
    Calls calls(operation->posted);
    operation->calls(calls);
    active_.push_back(operation);
  } catch (...) {
    active_.push_back(operation);
    fail(operation, with_name(*operation, std::current_exception()));
  }
}

// Ends an operation of which MPI may not let go, and all others of its group unless it is a message.
void Engine::fail(const std::shared_ptr<Operation>& operation, const std::exception_ptr& error) {
  std::vector<std::shared_ptr<Operation>> failed = {operation};
  if (!operation->is_message) {
    clean_ = false;
    if (operation->comm->broken.empty()) operation->comm->broken = concat(operation->name, " failed");
    for (const auto& other : active_) {
      if (other != operation && other->comm == operation->comm) failed.push_back(other);
    }
  }
  for (const auto& each : failed) {
    std::erase(active_, each);
    if (!each->is_message || !take_back(each->posted)) abandoned_.push_back(each);
  }
  for (const auto& each : failed) finish(*each, error);
}

void Engine::give_up(const std::shared_ptr<Operation>& operation) {
  const char* const problem = operation->is_message ? ": nothing came of it within " : " did not end within ";
  fail(operation,
       std::make_exception_ptr(shm::PeerError(
           {.what = concat(operation->name, problem, seconds(operation->deadline.duration()), " s"),
            .rank = operation->comm->rank})));
}

bool Engine::poll() {
  bool moved = false;
  // Callbacks may post tasks, but these begin only later: the list shrinks here, and never grows.
  const auto now = active_;
  for (const auto& operation : now) {
    if (std::find(active_.begin(), active_.end(), operation) == active_.end())
      continue;  // failed with another
    try {
      if (test(operation->posted)) {
        std::erase(active_, operation);
        finish(*operation, nullptr);
        moved = true;
      } else if (operation->deadline.expired()) {
        give_up(operation);
        moved = true;
      }
    } catch (...) {
      fail(operation, with_name(*operation, std::current_exception()));
      moved = true;
    }
  }
  if (active_.empty() && (owns_ || groups_ > 0) && !said_goodbye_ && initialized_) {
    // Small messages may have ended for us while they still wait inside MPI for their turn on the wire.
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kCreateTag, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }
  std::erase_if(closing_, [this](const std::shared_ptr<Comm>& comm) {
    if (is_used(*comm)) return false;
    release(*comm);
    return true;
  });
  return moved;
}

// How long to sleep between two looks. Ranks often share cores with one another and with the threads that
// compute, so that spinning for long would slow down what it waits for.
microseconds Engine::pause() const {
  const auto quiet = Clock::now() - last_event_;
  if (active_.empty()) return quiet < std::chrono::seconds(1) ? milliseconds(1) : milliseconds(20);
  if (quiet < microseconds(200)) return microseconds(0);
  if (quiet < milliseconds(20)) return microseconds(20);
  return quiet < std::chrono::seconds(1) ? microseconds(100) : microseconds(1000);
}

std::deque<std::function<void()>> Engine::take_tasks(bool moved) {
  const microseconds nap = moved ? microseconds(0) : pause();
  if (nap.count() == 0) ::sched_yield();
  std::unique_lock lock(mutex_);
  const auto is_asked = [this] { return !tasks_.empty(); };
  if (!initialized_) {
    cv_.wait(lock, is_asked);
  } else if (nap.count() > 0) {
    cv_.wait_for(lock, nap, is_asked);
  }
  return std::exchange(tasks_, {});
}

void Engine::loop() {
  thread_id_ = std::this_thread::get_id();
  ::pthread_setname_np(::pthread_self(), "accelerate-mpi");
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // naps of microseconds shall not take 50
  for (bool moved = false; !stop_;) {
    for (const auto& task : take_tasks(moved)) task();
    moved = poll();
    finalize_if_left();
  }
  gone_ = true;
  ended_.set_value();
}

milliseconds Engine::leave_limit() const {
  return milliseconds(longest_ms_) + kLeaveGrace;
}

void Engine::leave(int exit_status) {
  if (!owns_ || exit_status != 0 || !clean_) {
    stop_ = true;
    return;
  }
  const auto world = std::make_shared<Comm>();
  world->handle = MPI_COMM_WORLD;
  begin(std::make_shared<Operation>(Operation{.name = "leaving MPI",
                                              .deadline = Deadline::after(leave_limit()),
                                              .comm = world,
                                              .calls = [](Calls& calls) { calls.barrier(); },
                                              .done =
                                                  [this](const std::exception_ptr& error, int) {
                                                    said_goodbye_ = !error;
                                                    left_alone_ = error != nullptr;
                                                    stop_ = left_alone_;
                                                  }}));
}

void Engine::finalize_if_left() {
  if (!said_goodbye_ || !active_.empty() || stop_) return;
  stop_ = true;
  // Requests that were given up are still MPI's; it might wait for them.
  if (!abandoned_.empty() || !clean_) return;
  free_operations();
  MPI_Finalize();
}

void Engine::at_exit(int exit_status, void* /*unused*/) {
  Engine& engine = get();
  if (engine.on_thread()) return;
  const bool politely = exit_status == 0 && engine.clean_;
  // The thread may be stuck in MPI. It is done for then, and the process ends all the same.
  const auto limit = (politely ? engine.leave_limit() : milliseconds(0)) + std::chrono::seconds(1);
  auto ended = engine.ended_.get_future();
  engine.post([&engine, exit_status] { engine.leave(exit_status); });
  const bool in_time = ended.wait_for(limit) == std::future_status::ready;
  if (!politely || !engine.owns_ || (in_time && !engine.left_alone_)) return;
  // mpirun ends a job of which a rank has left without MPI_Finalize, with whatever code that rank had.
  std::cout.flush();
  std::fflush(nullptr);
  const std::string message =
      concat("error: this rank has ended, and not all other ranks have within ", seconds(limit),
             " s. What they do without it needs a longer timeout of the communicator.\n");
  std::fputs(message.c_str(), stderr);
  ::_exit(static_cast<int>(ExitCode::kCommError));
}

Place start(const Deadline& deadline) {
  return Engine::get().start(deadline);
}

bool started_by_program() {
  int running = 0;
  MPI_Initialized(&running);
  return running != 0;
}

Group::Group(const GroupOptions& options, const Deadline& deadline) : comm_(std::make_shared<Comm>()) {
  comm_->rank = options.rank;
  comm_->size = static_cast<int>(options.world_ranks.size());
  comm_->largest_count = options.largest_count;
  Engine& engine = Engine::get();
  engine.call([&engine, comm = comm_, ranks = options.world_ranks] { engine.open(*comm, ranks); }, deadline,
              "making a group");
}

Group::~Group() {
  Engine& engine = Engine::get();
  try {
    // At once, since the program may be about to end MPI.
    engine.call([&engine, comm = comm_] { engine.close(comm); }, Deadline::after(std::chrono::seconds(5)),
                "closing a group");
  } catch (const std::exception&) {  // stuck in MPI, which does not let go of it
  }
}

void Engine::request(Operation operation) {
  const auto shared = std::make_shared<Operation>(std::move(operation));
  if (gone_) {
    shared->done(std::make_exception_ptr(
                     shm::PeerError({.what = concat(shared->name, ": this process has left MPI")})),
                 -1);
    return;
  }
  post([this, shared] { begin(shared); });
}

void Group::run(std::string name, milliseconds timeout, std::function<void(Calls&)> calls, Done done) {
  Engine::get().request({.name = std::move(name),
                         .deadline = Deadline::after(timeout),
                         .comm = comm_,
                         .calls = std::move(calls),
                         .done = std::move(done)});
}

void Group::run_message(std::string name, milliseconds timeout, std::function<void(Calls&)> calls,
                        Done done) {
  Engine::get().request({.name = std::move(name),
                         .deadline = Deadline::after(timeout),
                         .comm = comm_,
                         .calls = std::move(calls),
                         .done = std::move(done),
                         .is_message = true});
}

}  // namespace accelerate::mpi
