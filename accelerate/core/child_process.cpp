#include "accelerate/core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr int kFirstFreeFd = 3;

// What the child tells us through the error pipe when it can't become the program.
enum class SpawnStage : int { kRedirect, kChangeDirectory, kPin, kExec };
struct SpawnFailure {
  SpawnStage stage;
  int error_number;
};

// Everything the child needs, made before fork(): between fork and exec it must not allocate.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const char* working_directory;
  const cpu_set_t* cpus;  // none: not pinned
  size_t cpus_bytes;
  int stdin_fd;  // -1: inherited
  int stdout_fd;
  int stderr_fd;
  bool merge_output;
  int error_fd;
  const int* inherited_fds;
  size_t inherited_count;
  const bool* keep_ignored;  // indexed by signal
  bool own_process_group;
  int parent_death_signal;
  pid_t parent;
};

[[noreturn]] void throw_no_descriptor(const std::string& what, int error) {
  throw LaunchError({.what = concat(what, ": ", errno_text(error)), .hint = descriptor_hint(error)});
}

// A pipe whose ends never take the numbers 0 to 2, which the child is about to overwrite.
std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_no_descriptor("pipe", errno);
  UniqueFd both[2] = {UniqueFd(ends[0]), UniqueFd(ends[1])};
  for (UniqueFd& end : both) {
    if (end.get() >= kFirstFreeFd) continue;
    const int moved = ::fcntl(end.get(), F_DUPFD_CLOEXEC, kFirstFreeFd);
    if (moved < 0) throw_no_descriptor("pipe", errno);
    end.reset(moved);
  }
  return {std::move(both[0]), std::move(both[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void fail_in_child(const ChildPlan& plan, SpawnStage stage) {
  const SpawnFailure failure{stage, errno};
  [[maybe_unused]] const ssize_t written = ::write(plan.error_fd, &failure, sizeof failure);
  ::_exit(127);
}

// Runs in the child: only async-signal-safe calls.
[[noreturn]] void become_program(const ChildPlan& plan) {
  if (plan.own_process_group) ::setpgid(0, 0);
  if (plan.parent_death_signal != 0) {
    ::prctl(PR_SET_PDEATHSIG, plan.parent_death_signal);
    // The parent may have died before the line above took effect.
    if (::getppid() != plan.parent) ::_exit(127);
  }
  struct sigaction action;
  for (int number = 1; number < NSIG; ++number) {
    if (::sigaction(number, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_DFL) continue;
    if (action.sa_handler == SIG_IGN && plan.keep_ignored[number]) continue;
    std::memset(&action, 0, sizeof action);
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
  if (plan.stdin_fd >= 0 && ::dup2(plan.stdin_fd, STDIN_FILENO) < 0)
    fail_in_child(plan, SpawnStage::kRedirect);
  if (plan.stdout_fd >= 0 && ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0)
    fail_in_child(plan, SpawnStage::kRedirect);
  if (plan.stderr_fd >= 0 && ::dup2(plan.stderr_fd, STDERR_FILENO) < 0)
    fail_in_child(plan, SpawnStage::kRedirect);
  if (plan.merge_output && ::dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
    fail_in_child(plan, SpawnStage::kRedirect);
  for (size_t i = 0; i < plan.inherited_count; ++i) {
    if (::fcntl(plan.inherited_fds[i], F_SETFD, 0) != 0) fail_in_child(plan, SpawnStage::kRedirect);
  }
  if (plan.working_directory != nullptr && ::chdir(plan.working_directory) != 0) {
    fail_in_child(plan, SpawnStage::kChangeDirectory);
  }
  if (plan.cpus != nullptr && ::sched_setaffinity(0, plan.cpus_bytes, plan.cpus) != 0)
    fail_in_child(plan, SpawnStage::kPin);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(plan.program, plan.argv, plan.envp);
  fail_in_child(plan, SpawnStage::kExec);
}

// Of a script's first line; empty for another file.
std::string interpreter_of(const std::string& program) {
  std::ifstream file(program, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("#!")) return {};
  std::string out;
  std::istringstream(line.substr(2)) >> out;
  return out;
}

[[noreturn]] void throw_failure(const SpawnOptions& options, const SpawnFailure& failure) {
  const std::string reason = errno_text(failure.error_number);
  switch (failure.stage) {
    case SpawnStage::kChangeDirectory:
      throw LaunchError({.what = concat("can't enter directory ", options.working_directory, ": ", reason)});
    case SpawnStage::kRedirect:
      throw LaunchError({.what = concat("can't set up the descriptors of ", options.program, ": ", reason)});
    case SpawnStage::kPin:
      throw LaunchError({.what = concat("can't pin ", options.program, " to its CPUs: ", reason),
                         .hint = "Another program may have taken CPUs from this one; start again."});
    case SpawnStage::kExec:
      break;
  }
  ErrorText text{.what = concat("can't execute ", options.program, ": ", reason)};
  if (failure.error_number == ENOENT && ::access(options.program.c_str(), F_OK) == 0) {
    // The kernel means what the file needs to be run.
    const std::string interpreter = interpreter_of(options.program);
    text.what = concat("can't execute ", options.program, ": ",
                       interpreter.empty() ? "the loader that it was linked for is not there"
                                           : concat("its interpreter ", interpreter, " is not there"));
    text.hint = interpreter.empty() ? "It was built for another system: build it on this one."
                                    : "Correct the first line of the script, or install the interpreter.";
  } else if (failure.error_number == ENOEXEC) {
    text.hint =
        "A script needs a first line such as #!/bin/sh; a program must be built for this kind of machine.";
  } else if (failure.error_number == E2BIG) {
    text.hint = "The arguments and environment variables together are too long.";
  }
  throw LaunchError(std::move(text));
}

// A set of CPUs of any number, in the kernel's form.
class CpuMask {
 public:
  explicit CpuMask(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const int capacity = std::max(CPU_SETSIZE, *std::max_element(cpus.begin(), cpus.end()) + 1);
    words_.resize(CPU_ALLOC_SIZE(capacity) / sizeof(cpu_set_t::__bits[0]));
    for (const int cpu : cpus) {
      if (cpu >= 0) CPU_SET_S(static_cast<size_t>(cpu), bytes(), get());
    }
  }
  cpu_set_t* get() { return words_.empty() ? nullptr : reinterpret_cast<cpu_set_t*>(words_.data()); }
  size_t bytes() const { return words_.size() * sizeof(words_[0]); }

 private:
  std::vector<std::remove_all_extents_t<decltype(cpu_set_t::__bits)>> words_;
};

// fork() with all signals blocked in both processes, so that no handler of ours runs in the child.
pid_t fork_blocked(const ChildPlan& plan) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become_program(plan);
  const int fork_errno = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    throw LaunchError({.what = concat("can't start ", plan.program, ": ", errno_text(fork_errno)),
                       .hint = fork_errno == EAGAIN ? "The limit of processes is reached (ulimit -u)." : ""});
  }
  return pid;
}

void set_nonblocking(const UniqueFd& fd) {
  if (fd) ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

// State and process group of a process by /proc, "Z" for a zombie; nothing when it is gone.
std::optional<std::pair<char, pid_t>> read_state_and_group(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The name before the last ')' may hold anything.
  std::istringstream rest(line.substr(std::min(line.rfind(')') + 1, line.size())));
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
  rest >> state >> parent >> group;
  return rest ? std::make_optional(std::pair(state, group)) : std::nullopt;
}

// kill(2) counts zombies, which stay for as long as an init that reaps lazily, or a container without one,
// lets them.
bool has_living_member(pid_t group) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename().string();
    if (!parse_int(pid)) continue;
    const auto found = read_state_and_group(pid);
    if (found && found->second == group && found->first != 'Z' && found->first != 'X') return true;
  }
  return false;
}

WaitStatus to_status(int raw) {
  WaitStatus out;
  if (WIFSIGNALED(raw)) {
    out.signal = WTERMSIG(raw);
    out.core_dumped = WCOREDUMP(raw);
  } else {
    out.exit_code = WEXITSTATUS(raw);
  }
  return out;
}

}  // namespace

std::string signal_name(int signal_number) {
  // sigabbrev_np() is younger than the oldest C library that LibTorch runs on.
  struct Entry {
    int number;
    const char* name;
  };
  static constexpr Entry kNames[] = {
      {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"}, {SIGILL, "SIGILL"},
      {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
      {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"}, {SIGCHLD, "SIGCHLD"},
      {SIGCONT, "SIGCONT"}, {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"}, {SIGXCPU, "SIGXCPU"},
      {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
  };
  for (const Entry& entry : kNames) {
    if (entry.number == signal_number) return entry.name;
  }
  return concat("signal ", signal_number);
}

std::string descriptor_hint(int error_number) {
  if (error_number == EMFILE) return "Raise the limit of open files (ulimit -n), or start fewer processes.";
  if (error_number == ENFILE) return "The whole machine has too many open files (sysctl fs.file-max).";
  return {};
}

std::string WaitStatus::describe() const {
  if (signal) return concat("killed by ", signal_name(*signal));
  return concat("exited with code ", exit_code.value_or(-1));
}

ChildProcess::ChildProcess(pid_t pid, bool leads_group, UniqueFd stdout_pipe, UniqueFd stderr_pipe)
    : pid_(pid), leads_group_(leads_group), stdout_(std::move(stdout_pipe)), stderr_(std::move(stderr_pipe)) {
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  set_nonblocking(stdout_);
  set_nonblocking(stderr_);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept {
  *this = std::move(other);
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  kill_and_reap();
  pid_ = std::exchange(other.pid_, -1);
  leads_group_ = other.leads_group_;
  group_gone_ = other.group_gone_;
  status_ = other.status_;
  pidfd_ = std::move(other.pidfd_);
  stdout_ = std::move(other.stdout_);
  stderr_ = std::move(other.stderr_);
  return *this;
}

ChildProcess::~ChildProcess() {
  kill_and_reap();
}

void ChildProcess::kill_and_reap() noexcept {
  if (pid_ <= 0) return;
  if (leads_group_ && !group_gone_) signal_group(SIGKILL);
  if (!status_) {
    signal(SIGKILL);
    wait(Deadline::after(std::chrono::seconds(1)));
  }
  pid_ = -1;
}

std::optional<WaitStatus> ChildProcess::poll() {
  if (status_ || pid_ <= 0) return status_;
  int raw = 0;
  pid_t got;
  do {
    got = ::waitpid(pid_, &raw, WNOHANG);
  } while (got < 0 && errno == EINTR);
  if (got == pid_) status_ = to_status(raw);
  // Somebody else reaped it (a SIGCHLD handler of the program we are part of): its status is lost.
  if (got < 0) status_ = WaitStatus{.exit_code = 1, .signal = std::nullopt};
  return status_;
}

std::optional<WaitStatus> ChildProcess::wait(const Deadline& deadline) {
  while (!poll() && !deadline.expired()) {
    pollfd item{pidfd_.get(), POLLIN, 0};
    // Without a pidfd there is nothing to wait on, so look again every few milliseconds.
    const int timeout_ms = pidfd_ ? deadline.poll_timeout_ms() : std::min(deadline.poll_timeout_ms(), 5);
    ::poll(&item, pidfd_ ? 1 : 0, timeout_ms);
  }
  return poll();
}

bool ChildProcess::signal(int signal_number) {
  if (status_ || pid_ <= 0) return false;
  return ::kill(pid_, signal_number) == 0;
}

bool ChildProcess::signal_group(int signal_number) {
  if (pid_ <= 0 || group_gone_ || !leads_group_) return false;
  if (::kill(-pid_, signal_number) == 0) return true;
  // Once the group is empty its number may be given to others: never signal it again.
  if (errno == ESRCH && status_) group_gone_ = true;
  return false;
}

bool ChildProcess::group_exists() {
  if (pid_ <= 0 || group_gone_ || !leads_group_) return false;
  if (!status_) return true;
  if (::kill(-pid_, 0) != 0 && errno == ESRCH) group_gone_ = true;
  return !group_gone_ && has_living_member(pid_);
}

ChildProcess spawn(const SpawnOptions& options) {
  std::vector<std::string> words = {options.program};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(options.environment);
  bool keep_ignored[NSIG] = {};
  for (const int number : options.keep_ignored) {
    if (number > 0 && number < NSIG) keep_ignored[number] = true;
  }

  auto [error_read, error_write] = make_pipe();
  UniqueFd null_input, stdout_read, stdout_write, stderr_read, stderr_write;
  if (!options.inherit_stdin) {
    null_input.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null_input) throw_no_descriptor("/dev/null", errno);
  }
  if (options.standard_output == ChildOutput::kPipe) std::tie(stdout_read, stdout_write) = make_pipe();
  if (options.standard_error == ChildOutput::kPipe) std::tie(stderr_read, stderr_write) = make_pipe();

  CpuMask mask(options.cpus);
  const ChildPlan plan{
      .program = options.program.c_str(),
      .argv = argv.data(),
      .envp = envp.data(),
      .working_directory = options.working_directory.empty() ? nullptr : options.working_directory.c_str(),
      .cpus = mask.get(),
      .cpus_bytes = mask.bytes(),
      .stdin_fd = null_input.get(),
      .stdout_fd = stdout_write.get(),
      .stderr_fd = stderr_write.get(),
      .merge_output = options.standard_error == ChildOutput::kMerge,
      .error_fd = error_write.get(),
      .inherited_fds = options.inherited_fds.data(),
      .inherited_count = options.inherited_fds.size(),
      .keep_ignored = keep_ignored,
      .own_process_group = options.own_process_group,
      .parent_death_signal = options.parent_death_signal,
      .parent = ::getpid()};
  const pid_t pid = fork_blocked(plan);
  // Both sides set the group, so that it exists whoever runs first; after exec this fails, harmlessly.
  if (options.own_process_group) ::setpgid(pid, pid);
  error_write.reset();
  ChildProcess child(pid, options.own_process_group, std::move(stdout_read), std::move(stderr_read));

  SpawnFailure failure{};
  ssize_t got;
  do {
    got = ::read(error_read.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof failure)) throw_failure(options, failure);
  return child;
}

}  // namespace accelerate
