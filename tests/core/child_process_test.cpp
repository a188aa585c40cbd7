#include "accelerate/core/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using namespace accelerate::testing;

namespace {

SpawnOptions shell(const std::string& command) {
  return {.program = "/bin/sh",
          .arguments = {"-c", command},
          .environment = {"PATH=/usr/bin:/bin", "GREETING=hello"},
          .working_directory = {},
          .inherited_fds = {},
          .standard_output = ChildOutput::kPipe,
          .standard_error = ChildOutput::kPipe,
          .keep_ignored = {}};
}

std::string read_all(UniqueFd& pipe) {
  std::string out;
  char buffer[512];
  const Deadline deadline = Deadline::after(kLimit);
  for (;;) {
    pollfd item{pipe.get(), POLLIN, 0};
    if (::poll(&item, 1, deadline.poll_timeout_ms()) <= 0) return out + "(timed out)";
    const ssize_t got = ::read(pipe.get(), buffer, sizeof buffer);
    if (got <= 0) return out;
    out.append(buffer, static_cast<size_t>(got));
  }
}

WaitStatus finish(ChildProcess& child) {
  const auto status = child.wait(Deadline::after(kLimit));
  REQUIRE(status);
  return *status;
}

std::string output_of(const SpawnOptions& options) {
  ChildProcess child = spawn(options);
  std::string out = read_all(child.stdout_pipe());
  finish(child);
  return out;
}

}  // namespace

TEST_CASE("a child gets the environment, folder and input it was given", "[core]") {
  CHECK(output_of(shell("echo $GREETING $HOME")) == "hello\n");
  SpawnOptions elsewhere = shell("pwd");
  elsewhere.working_directory = "/usr";
  CHECK(output_of(elsewhere) == "/usr\n");
  CHECK(output_of(shell("cat; echo end")) == "end\n");  // standard input is empty
  ChildProcess child = spawn(shell("echo out; echo err >&2"));
  CHECK(read_all(child.stdout_pipe()) == "out\n");
  CHECK(read_all(child.stderr_pipe()) == "err\n");
  CHECK(finish(child).success());
}

TEST_CASE("the way a child ended is told", "[core]") {
  ChildProcess exits = spawn(shell("exit 3"));
  const WaitStatus exited = finish(exits);
  CHECK(exited.exit_code == 3);
  CHECK(exited.shell_code() == 3);
  CHECK(exited.describe() == "exited with code 3");
  CHECK_FALSE(exited.success());

  ChildProcess dies = spawn(shell("kill -SEGV $$"));
  const WaitStatus killed = finish(dies);
  CHECK(killed.signal == SIGSEGV);
  CHECK_FALSE(killed.exit_code.has_value());
  CHECK(killed.shell_code() == 128 + SIGSEGV);
  CHECK(killed.describe() == "killed by SIGSEGV");
  CHECK(dies.poll()->signal == SIGSEGV);  // the same answer again
  CHECK(signal_name(40) == "signal 40");
}

TEST_CASE("a program that can't be executed is an error here, not an exit code", "[core]") {
  SpawnOptions options = shell("");
  options.program = "/nonexistent/program";
  CHECK_THROWS_WITH(spawn(options),
                    ContainsSubstring("/nonexistent/program") && ContainsSubstring("No such file"));
  options.program = "/etc/passwd";
  CHECK_THROWS_AS(spawn(options), LaunchError);
  TempDir dir;
  write_file(dir / "script", "echo no first line\n");
  std::filesystem::permissions(dir / "script", std::filesystem::perms::owner_all);
  options.program = dir / "script";
  CHECK_THROWS_WITH(spawn(options), ContainsSubstring("#!/bin/sh"));
  options = shell("");
  options.working_directory = "/nonexistent";
  CHECK_THROWS_WITH(spawn(options), ContainsSubstring("can't enter directory /nonexistent"));
}

TEST_CASE("only the descriptors asked for are inherited", "[core]") {
  TempDir dir;
  write_file(dir / "data", "contents\n");
  const UniqueFd given(::open((dir / "data").c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd kept(::open((dir / "data").c_str(), O_RDONLY | O_CLOEXEC));
  SpawnOptions options =
      shell(concat("cat <&", given.get(), "; test -e /proc/self/fd/", kept.get(), " || echo closed"));
  options.inherited_fds = {given.get()};
  CHECK(output_of(options) == "contents\nclosed\n");
  // Ours is still close-on-exec.
  CHECK((::fcntl(given.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("signals start from a clean state", "[core]") {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto old_int = ::signal(SIGINT, SIG_IGN);
  const auto old_hup = ::signal(SIGHUP, SIG_IGN);
  SpawnOptions options = shell("grep -E 'SigBlk|SigIgn' /proc/self/status");
  options.keep_ignored = {SIGHUP};
  const std::string status = output_of(options);
  ::signal(SIGINT, old_int);
  ::signal(SIGHUP, old_hup);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  CHECK_THAT(status, ContainsSubstring("SigBlk:\t0000000000000000"));
  CHECK_THAT(status, ContainsSubstring("SigIgn:\t0000000000000001"));  // SIGHUP alone
}

TEST_CASE("a child's group outlives it and can be signalled", "[core]") {
  ChildProcess child = spawn(shell("sleep 1000 & echo started; exit 0"));
  char byte = 0;
  pollfd item{child.stdout_pipe().get(), POLLIN, 0};
  REQUIRE(::poll(&item, 1, 30000) == 1);
  REQUIRE(::read(child.stdout_pipe().get(), &byte, 1) == 1);
  CHECK(finish(child).success());
  CHECK(child.group_exists());
  CHECK_FALSE(child.signal(SIGTERM));  // it is gone itself
  CHECK(child.signal_group(SIGKILL));
  CHECK(eventually([&] { return !child.group_exists(); }));
}

TEST_CASE("the end of a ChildProcess is the end of the child", "[core]") {
  pid_t pid = 0;
  {
    ChildProcess child = spawn(shell("sleep 1000"));
    pid = child.pid();
    ChildProcess moved = std::move(child);
    CHECK(moved.pid() == pid);
    CHECK(::kill(pid, 0) == 0);
  }
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("waiting has a deadline and a pidfd tells of the end", "[core]") {
  ChildProcess child = spawn(shell("read line; sleep 1000"));
  CHECK_FALSE(child.wait(Deadline::after(std::chrono::milliseconds(20))).has_value());
  if (child.pidfd() < 0) return;  // before Linux 5.3
  child.signal_group(SIGKILL);
  pollfd item{child.pidfd(), POLLIN, 0};
  CHECK(::poll(&item, 1, 30000) == 1);
  CHECK(child.poll()->signal == SIGKILL);
}
