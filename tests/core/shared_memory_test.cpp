#include "accelerate/core/shared_memory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "test_support.h"

using namespace accelerate;

namespace {

std::set<std::string> entries(const std::string& part) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().find(part) != std::string::npos)
      out.insert(entry.path().filename().string());
  }
  return out;
}

const std::string kJob = concat("unit-", ::getpid());

}  // namespace

TEST_CASE("a segment has no name before it is published and none after it is withdrawn") {
  SharedMemoryMapping reader;
  {
    SharedMemorySegment segment(kJob, 8192);
    CHECK(entries(kJob).empty());
    SharedMemoryMapping writer = segment.map_writable();
    std::memcpy(writer.data(), "hello", 6);
    const std::string path = segment.publish();
    REQUIRE(entries(kJob).size() == 1);
    CHECK(path.starts_with(concat("/dev/shm/accelerate-", ::getuid(), "-", kJob, "-")));
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    reader = attach_shared_memory(path, 8192);
    CHECK_FALSE(reader.writable());
    segment.withdraw();
    segment.withdraw();  // again is no error
    CHECK(entries(kJob).empty());
    CHECK_THROWS_WITH(attach_shared_memory(path, 8192), ContainsSubstring("No such file"));
    std::memcpy(writer.data(), "HELLO", 6);
  }
  CHECK(std::string(reinterpret_cast<const char*>(reader.data())) == "HELLO");  // outlives name and builder
}

TEST_CASE("a folder without room is an error with the bytes needed and free, or the fall-back is taken") {
  const size_t huge = size_t{1} << 50;
  CHECK_THROWS_WITH(
      SharedMemorySegment(kJob, huge),
      ContainsSubstring("needs 1125899906842624 bytes (1.0 PiB), has ") && ContainsSubstring("bytes free"));
  CHECK_THROWS_WITH(SharedMemorySegment(kJob, 1, {.directory = "/nowhere"}),
                    ContainsSubstring("/nowhere: No such file"));
  CHECK_THROWS_AS(SharedMemorySegment(kJob, 0), DataError);
  const std::string fallback = std::filesystem::temp_directory_path().string();
  SharedMemorySegment segment(kJob, 4096, {.directory = "/nowhere", .fallback_directory = fallback});
  CHECK(segment.in_fallback());
  const std::string path = segment.publish();
  CHECK(path.starts_with(fallback));
  CHECK(attach_shared_memory(path, 4096).size_bytes() == 4096);
  CHECK_THROWS_WITH(attach_shared_memory(path, 8192), ContainsSubstring("expected 8192 bytes"));
}

TEST_CASE("the sweep removes what a killed publisher left, and nothing that is in use") {
  const SharedMemorySegment mine(concat(kJob, "-live"), 4096);
  const_cast<SharedMemorySegment&>(mine).publish();
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    SharedMemorySegment segment(concat(kJob, "-dead"), 4096);
    segment.publish();
    [[maybe_unused]] const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  sweep_shared_memory();
  CHECK(entries(kJob + "-dead").size() == 1);  // its publisher lives
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(entries(kJob + "-dead").size() == 1);  // killed between publish and withdraw
  CHECK(sweep_shared_memory() >= 1);
  CHECK(entries(kJob + "-dead").empty());
  CHECK(entries(kJob + "-live").size() == 1);
  CHECK(sweep_shared_memory(kJob) == 0);  // another job's id that only begins alike
  CHECK(sweep_shared_memory(kJob + "-live") == 1);
  CHECK(entries(kJob).empty());
}

TEST_CASE("writing to a read-only mapping is a segmentation fault of the writer only") {
  SharedMemorySegment segment(kJob, 4096);
  SharedMemoryMapping mapping = segment.map_writable();
  mapping.make_read_only();
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    *mapping.data() = std::byte{1};
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
  CHECK(*mapping.data() == std::byte{0});
}

TEST_CASE("a limit on file sizes is an error that names it, not a signal") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{1 << 20, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string reserving = "no error";
  std::string writing = "no error";
  try {
    const SharedMemorySegment segment("limit", 8 << 20);
  } catch (const DataError& error) {
    reserving = error.what();
  }
  const std::string path =
      (std::filesystem::temp_directory_path() / concat("accelerate-limit-", ::getpid())).string();
  try {
    write_file_atomically(system_files(), path, std::string(8 << 20, 'x'));
  } catch (const CheckpointError& error) {
    writing = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK_THAT(reserving, ContainsSubstring("needs 8388608 bytes"));
  CHECK_THAT(reserving, ContainsSubstring("files of 1048576 bytes (1.0 MiB) only: raise ulimit -f"));
  CHECK_THAT(writing, ContainsSubstring("ulimit -f"));
  CHECK_FALSE(std::filesystem::exists(path));
}
